"""One Starlette/uvicorn server for every HTTP service: TLS, certificate reload, body limits, shutdown."""
