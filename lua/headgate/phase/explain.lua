--- server_rewrite_by_lua of the sockets of `headgate explain`: function(scheme).
return require("headgate.worker").explain
