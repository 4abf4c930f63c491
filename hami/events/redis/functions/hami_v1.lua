#!lua name=hami_v1
--[[
Every write that must be one step. The library's name carries its version: changed behaviour is hami_v2.

Replies are arrays; the first item is a word in capitals. All checks come before the first write, since nothing is rolled back.
Numbers that leave this file go through `whole`: Lua would print large ones with an exponent.

Lock value: <token>:<h|g>:<since ms>:<owner>. `since` is when this holder got it. `h` is held; `g` is granted to a waiter that has not confirmed yet, for CONFIRM_MS at most,
so that a dead waiter costs that long and no more. The `locks` hash keeps <token>:<owner> of the last holder (owner empty once it
let go), so that tokens never fall, and a lock that ran out can be told from one that was let go.
Queue entry: <deadline ms>:<owner>, oldest first.
--]]

local CONFIRM_MS = 1000
local FEED_LENGTH = '1000'
local FEED_TTL_MS = 7 * 24 * 3600 * 1000
local FEED_TTL_SLACK_MS = 3600 * 1000
local DEAD_LENGTH = 10000
local AT_ONCE = 1000 -- fields of one command: `unpack` has a limit

local function whole(number)
  return string.format('%d', number)
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function producer_row(text)
  if not text then return 0, 0, '' end
  local epoch, seq, entry = string.match(text, '^(%d+):(%d+):(.*)$')
  return tonumber(epoch), tonumber(seq), entry
end

local function lock_value(text)
  if not text then return nil end
  local token, state, since, owner = string.match(text, '^(%d+):(%a):(%d+):(.*)$')
  return {token = tonumber(token), state = state, since = tonumber(since), owner = owner}
end

--[[ append
KEYS: heads, log, then the lock (if fenced), then feeds
ARGV: incarnation, the producer's row, epoch, seq of the first event,
      how many events, names, and expected versions there are, the fence's owner ('' = not fenced), its token;
      the names: entities that this append looks at or moves, each once, those with an expected version first;
      the expected versions; then for each event:
      its feed's place in KEYS (0 = none), how many entities it moves, the places of these in the list of names, the envelope
No part is JSON: taking it apart here cost more than the writes.
The hash `heads` holds incarnation, g, producer/<name> (epoch:seq:entry last accepted), and each entity's version: one read and
one write of it serve the whole call, as every command costs again in calling it and in the append-only file.
An entry of the log: d <envelope> p <{"g": counter, "v": {entity: version after}}>. Entities hold nothing that JSON escapes.
Numbers up to 10^14 are written out by `..` without an exponent: versions and counters stay below.
Answer: {"g": of the last event, "ids": [...], "moved": [what stands in v, for each event]} as text, an array for a refusal.
--]]

local NAMES = 9 -- the arguments before the names

-- incarnation, g, the producer's row, then the versions of the names; false where there is nothing.
local function heads_of(key, argv, named)
  local last = NAMES + named
  if named <= AT_ONCE then
    return redis.call('HMGET', key, 'incarnation', 'g', argv[2], unpack(argv, NAMES + 1, last))
  end
  local heads = redis.call('HMGET', key, 'incarnation', 'g', argv[2])
  for from = NAMES + 1, last, AT_ONCE do
    for _, version in ipairs(redis.call('HMGET', key, unpack(argv, from, math.min(from + AT_ONCE - 1, last)))) do
      heads[#heads + 1] = version
    end
  end
  return heads
end

local function conflict(argv, heads, named, given)
  local differs, actual = false, {'CONFLICT'}
  for n = 1, given do
    local now = heads[3 + n] or '0'
    if now ~= argv[NAMES + named + n] then differs = true end
    actual[2 * n], actual[2 * n + 1] = argv[NAMES + n], now
  end
  return differs and actual
end

local function save_heads(key, flat)
  if #flat <= AT_ONCE then return redis.call('HSET', key, unpack(flat)) end
  for from = 1, #flat, AT_ONCE do
    redis.call('HSET', key, unpack(flat, from, math.min(from + AT_ONCE - 1, #flat)))
  end
end

-- A feed lives for a while after its last event; setting that anew each time would cost a write each time.
local function keep_feed(key)
  if redis.call('PTTL', key) < FEED_TTL_MS - FEED_TTL_SLACK_MS then redis.call('PEXPIRE', key, FEED_TTL_MS) end
end

-- Writes the events; counts up `heads`, and puts the names that moved into `flat` as HSET wants them.
local function write_events(keys, argv, heads, at, flat, count)
  local ids, texts, fed, moved = {}, {}, {}, {}
  local log, g = keys[2], tonumber(heads[2] or 0)
  for i = 1, count do
    local place, entities = argv[at], argv[at + 1] + 0
    local text = '{'
    for n = at + 2, at + 1 + entities do
      local name = argv[n] + 0
      local version = (heads[3 + name] or 0) + 1
      heads[3 + name] = version
      moved[name] = true
      text = text .. (n > at + 2 and ',"' or '"') .. argv[NAMES + name] .. '":' .. version
    end
    text = text .. '}'
    at = at + 2 + entities
    texts[i] = text
    ids[i] = redis.call('XADD', log, '*', 'd', argv[at], 'p', '{"g":' .. (g + i) .. ',"v":' .. text .. '}')
    if place ~= '0' then
      local feed = keys[place + 0]
      redis.call('XADD', feed, 'MAXLEN', '~', FEED_LENGTH, '*', 'd', argv[at])
      fed[feed] = true
    end
    at = at + 1
  end
  for feed in pairs(fed) do keep_feed(feed) end
  for name in pairs(moved) do
    flat[#flat + 1] = argv[NAMES + name]
    flat[#flat + 1] = heads[3 + name]
  end
  return ids, texts
end

local function append(keys, argv)
  local named, given = argv[6] + 0, argv[7] + 0
  local heads = heads_of(keys[1], argv, named)
  if heads[1] ~= argv[1] then return {'UNSAFE', heads[1] or ''} end

  local row, epoch, first, count = argv[2], argv[3] + 0, argv[4] + 0, argv[5] + 0
  local seen_epoch, seen_seq, seen_entry = producer_row(heads[3])
  local last = first + count - 1
  if epoch < seen_epoch then return {'FENCED', whole(seen_epoch)} end
  if epoch > seen_epoch then
    seen_epoch, seen_seq, seen_entry = epoch, 0, ''
  end
  if last <= seen_seq then
    -- Written again as it is, so that a WAITAOF after this call covers the first one too.
    redis.call('HSET', keys[1], row, whole(seen_epoch) .. ':' .. whole(seen_seq) .. ':' .. seen_entry)
    return {'DUP', last == seen_seq and seen_entry or ''}
  end
  if first ~= seen_seq + 1 then return {'GAP', whole(seen_epoch), whole(seen_seq), seen_entry} end

  if argv[8] ~= '' then
    local held = lock_value(redis.call('GET', keys[3]))
    if not held or held.owner ~= argv[8] or held.token ~= argv[9] + 0 then
      return {'STALE', held and held.owner or '', held and whole(held.token) or '0'}
    end
  end

  local refused = given > 0 and conflict(argv, heads, named, given)
  if refused then return refused end

  -- From here on it writes.
  local g = tonumber(heads[2] or 0) + count
  local flat = {'g', g, row, ''}
  local ids, texts = write_events(keys, argv, heads, NAMES + named + given + 1, flat, count)
  flat[4] = argv[3] .. ':' .. last .. ':' .. ids[count]
  save_heads(keys[1], flat)
  return '{"g":' .. g .. ',"ids":["' .. table.concat(ids, '","') .. '"],"moved":[' .. table.concat(texts, ',') .. ']}'
end

-- Locks. KEYS of all lock functions: lock, queue, locks. ARGV starts with the lock's name and the prefix of wake keys.

local function last_holder(keys, name)
  local text = redis.call('HGET', keys[3], name)
  if not text then return 0, '' end
  local token, owner = string.match(text, '^(%d+):(.*)$')
  return tonumber(token), owner
end

local function write_lock(keys, held, ttl_ms)
  local value = whole(held.token) .. ':' .. held.state .. ':' .. whole(held.since) .. ':' .. held.owner
  redis.call('SET', keys[1], value, 'PX', ttl_ms)
end

local function give(keys, name, owner, state, ttl_ms, now)
  local token, before = last_holder(keys, name)
  token = token + 1
  redis.call('HSET', keys[3], name, whole(token) .. ':' .. owner)
  write_lock(keys, {token = token, state = state, since = now, owner = owner}, ttl_ms)
  return token, before
end

local function waiter_of(entry)
  local deadline, owner = string.match(entry, '^(%d+):(.*)$')
  return tonumber(deadline), owner
end

local function drop_late_waiters(keys, now)
  local head = redis.call('LINDEX', keys[2], 0)
  while head do
    local deadline = waiter_of(head)
    if deadline > now then return end
    redis.call('LPOP', keys[2])
    head = redis.call('LINDEX', keys[2], 0)
  end
end

local function leave_queue(keys, owner)
  local left = false
  for _, entry in ipairs(redis.call('LRANGE', keys[2], 0, -1)) do
    local _, waiting = waiter_of(entry)
    if waiting == owner then
      redis.call('LREM', keys[2], 1, entry)
      left = true
    end
  end
  return left
end

-- The lock is free: the first live waiter gets it and is woken. False when nobody waits.
local function hand_over(keys, argv, now)
  drop_late_waiters(keys, now)
  local head = redis.call('LPOP', keys[2])
  if not head then return false end
  local _, owner = waiter_of(head)
  give(keys, argv[1], owner, 'g', CONFIRM_MS, now)
  local wake = argv[2] .. owner
  redis.call('RPUSH', wake, '1')
  redis.call('PEXPIRE', wake, CONFIRM_MS)
  return true
end

local function free(keys, argv, now)
  local token = last_holder(keys, argv[1])
  redis.call('HSET', keys[3], argv[1], whole(token) .. ':')
  redis.call('DEL', keys[1])
  hand_over(keys, argv, now)
end

local function ahead_of(keys, owner)
  local entries = redis.call('LRANGE', keys[2], 0, -1)
  for place, entry in ipairs(entries) do
    local _, waiting = waiter_of(entry)
    if waiting == owner then return place - 1, true end
  end
  return #entries, false
end

-- Keeps a queue's TTL beyond its last deadline, so that a queue nobody asks about again goes away.
local function join_queue(keys, owner, deadline, now)
  redis.call('RPUSH', keys[2], whole(deadline) .. ':' .. owner)
  local ttl = redis.call('PTTL', keys[2])
  local wanted = deadline - now + 60000
  if ttl < wanted then redis.call('PEXPIRE', keys[2], wanted) end
end

-- ARGV: name, wake prefix, owner, ttl, wait ms (0 = do not queue, and leave the queue if in it)
-- HELD token reclaimed-from | BUSY holder token ahead ttl-of-holder
local function lock_acquire(keys, argv)
  local owner, ttl, wait = argv[3], tonumber(argv[4]), tonumber(argv[5])
  local now = now_ms()
  local held = lock_value(redis.call('GET', keys[1]))
  if held and held.owner == owner then
    if held.state == 'g' then redis.call('DEL', argv[2] .. owner) end
    held.state = 'h'
    write_lock(keys, held, ttl)
    leave_queue(keys, owner)
    return {'HELD', whole(held.token), ''}
  end
  drop_late_waiters(keys, now)
  if not held then
    local head = redis.call('LINDEX', keys[2], 0)
    local _, first = waiter_of(head or '0:')
    if not head or first == owner then
      leave_queue(keys, owner)
      local token, before = give(keys, argv[1], owner, 'h', ttl, now)
      return {'HELD', whole(token), before}
    end
    hand_over(keys, argv, now)
    held = lock_value(redis.call('GET', keys[1]))
  end
  local ahead, queued = ahead_of(keys, owner)
  if wait <= 0 and queued then
    leave_queue(keys, owner)
  elseif wait > 0 and not queued then
    join_queue(keys, owner, now + wait, now)
  end
  return {'BUSY', held.owner, whole(held.token), whole(ahead), whole(redis.call('PTTL', keys[1]))}
end

-- ARGV: name, wake prefix, owner, token, ttl
local function lock_renew(keys, argv)
  local held = lock_value(redis.call('GET', keys[1]))
  if not held or held.owner ~= argv[3] or held.token ~= tonumber(argv[4]) then return {'STALE'} end
  held.state = 'h'
  write_lock(keys, held, argv[5])
  return {'RENEWED'}
end

-- ARGV: name, wake prefix, owner, token
local function lock_release(keys, argv)
  local held = lock_value(redis.call('GET', keys[1]))
  if not held then
    local token, owner = last_holder(keys, argv[1])
    if owner == argv[3] and token == tonumber(argv[4]) then free(keys, argv, now_ms()) end
    return {'ABSENT'}
  end
  if held.owner ~= argv[3] or held.token ~= tonumber(argv[4]) then return {'STALE'} end
  free(keys, argv, now_ms())
  return {'RELEASED'}
end

-- A waiter gives up (cancelled): out of the queue, and a grant that it never confirmed goes to the next. ARGV: name, prefix, owner
local function lock_leave(keys, argv)
  leave_queue(keys, argv[3])
  redis.call('DEL', argv[2] .. argv[3])
  local held = lock_value(redis.call('GET', keys[1]))
  if held and held.owner == argv[3] and held.state == 'g' then free(keys, argv, now_ms()) end
  return {'LEFT'}
end

-- The owner's pod is gone: whatever it holds or waits for is freed. ARGV: name, wake prefix, owner
local function lock_evict(keys, argv)
  leave_queue(keys, argv[3])
  local held = lock_value(redis.call('GET', keys[1]))
  if not held then
    local _, owner = last_holder(keys, argv[1])
    if owner == argv[3] then free(keys, argv, now_ms()) end
    return {'ABSENT'}
  end
  if held.owner ~= argv[3] then return {'STALE'} end
  free(keys, argv, now_ms())
  return {'RELEASED'}
end

-- ARGV: name. STATE holder token ttl waiters age | FREE
local function lock_state(keys, argv)
  local now = now_ms()
  local held = lock_value(redis.call('GET', keys[1]))
  local waiters = {}
  for _, entry in ipairs(redis.call('LRANGE', keys[2], 0, -1)) do
    local deadline, owner = waiter_of(entry)
    if deadline > now then waiters[#waiters + 1] = owner end
  end
  if not held and #waiters == 0 then return {'FREE'} end
  local token = last_holder(keys, argv[1])
  local ttl, age = held and redis.call('PTTL', keys[1]) or 0, held and math.max(0, now - held.since) or 0
  return {'STATE', held and held.owner or '', whole(token), whole(ttl), waiters, whole(age)}
end

-- KEYS: inbox, dead letters. ARGV: entry, node, envelope, why
local function bury(keys, argv)
  if redis.call('XDEL', keys[1], argv[1]) == 0 then return {'ABSENT'} end
  redis.call('XADD', keys[2], 'MAXLEN', '~', DEAD_LENGTH, '*',
    'entry', argv[1], 'node', argv[2], 'd', argv[3], 'why', argv[4])
  return {'BURIED'}
end

-- The newest and the one before. KEYS: newest, previous. ARGV: value
local function checkpoint(keys, argv)
  local newest = redis.call('GET', keys[1])
  if newest and newest ~= argv[1] then redis.call('RENAME', keys[1], keys[2]) end
  redis.call('SET', keys[1], argv[1])
  return {'SAVED'}
end

--[[ forget
KEYS: heads. ARGV: incarnation, then pairs of an entity and the version that its last event gave it.
A pod that left long ago need not be known for ever. Its version goes only while it is still the one given: whatever moved the pod
meanwhile keeps it. To `append` a forgotten entity is at 0, so conditions stay safe:
- a replica whose view still holds the old version expects that one, finds 0 and gets CONFLICT;
- a replica that forgot as well expects 0, as for any pod it never saw, and that is what it finds;
- counting begins at 1 again, so a view could be fooled only by being older than the pod's whole life: folds remember a version for
  RETIRED_FOR_MS after the end, callers forget later than that, and a view is not decided from when it is seconds old.
Only pods: nodes and quotas come back under their name.
--]]
local function forget(keys, argv)
  local incarnation = redis.call('HGET', keys[1], 'incarnation')
  if incarnation ~= argv[1] then return {'UNSAFE', incarnation or ''} end
  local gone = {}
  for at = 2, #argv, 2 do
    if string.sub(argv[at], 1, 4) == 'pod/' and redis.call('HGET', keys[1], argv[at]) == argv[at + 1] then
      gone[#gone + 1] = argv[at]
    end
  end
  for from = 1, #gone, AT_ONCE do
    redis.call('HDEL', keys[1], unpack(gone, from, math.min(from + AT_ONCE - 1, #gone)))
  end
  return {'FORGOTTEN', whole(#gone)}
end

redis.register_function('hami_append', append)
-- With `allow-oom` what a full store needs to become smaller: the archive's turn, and forgetting.
redis.register_function{function_name = 'hami_forget', callback = forget, flags = {'allow-oom'}}
redis.register_function{function_name = 'hami_lock_acquire', callback = lock_acquire, flags = {'allow-oom'}}
redis.register_function('hami_lock_renew', lock_renew)
redis.register_function('hami_lock_release', lock_release)
redis.register_function('hami_lock_leave', lock_leave)
redis.register_function('hami_lock_evict', lock_evict)
redis.register_function{function_name = 'hami_lock_state', callback = lock_state, flags = {'no-writes'}}
redis.register_function('hami_bury', bury)
redis.register_function('hami_checkpoint', checkpoint)
