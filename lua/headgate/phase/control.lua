--- content_by_lua of the control socket.
return require("headgate.worker").control
