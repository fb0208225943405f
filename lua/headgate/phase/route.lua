--- server_rewrite_by_lua: function(scheme).
return require("headgate.worker").route
