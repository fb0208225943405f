--- content_by_lua of the peer that explained requests are sent to.
return require("headgate.worker").explained
