--- ssl_certificate_by_lua.
return require("headgate.worker").choose_certificate
