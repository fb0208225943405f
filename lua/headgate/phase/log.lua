--- log_by_lua: the end of each request.
local worker = require "headgate.worker"

return worker.log or function() end
