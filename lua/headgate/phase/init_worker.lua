--- init_worker_by_lua.
local worker = require "headgate.worker"

return function()
    local ok, err = worker.start()
    if not ok then
        ngx.log(ngx.ERR, "the timer of the worker: ", err)
    end
end
