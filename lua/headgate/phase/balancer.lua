--- balancer_by_lua.
return require("headgate.worker").balance
