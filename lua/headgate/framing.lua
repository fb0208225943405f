--- Refuses answers of peers that would reach clients without framing: nginx 1.22 passes on statuses
-- below 200 as if they were final, with whatever follows, and takes what is no HTTP for HTTP/0.9,
-- which is nothing but a body. A client that shares its connection with others, as a CDN does,
-- would take what follows for the answer to one of them.
local NO_HTTP = require("headgate.peers").NO_HTTP

local _M = {}

local SWITCHING_PROTOCOLS = 101
local LEAST_FINAL = 200
local BAD_GATEWAY = 502

--- Make the function of the phase.
-- @tparam table o ngx; status: function() gives that of the answer; get: reads variables of nginx;
--   handover: see handover.lua
-- @treturn function
function _M.new(o)
    local ngx, get = o.ngx, o.get
    return function()
        local status = o.status()
        if status >= LEAST_FINAL then
            return
        end
        if status == SWITCHING_PROTOCOLS and (get("headgate_upgrade") or "") ~= "" then
            return
        end
        ngx.log(ngx.ERR, "peer ", get("upstream_addr"), " of ", o.handover.upstream(),
            " answers with status ", status, ", which is none: refused")
        if status == NO_HTTP then
            -- nginx sends no head any more, not even that of an error: the connection is closed.
            return ngx.exit(ngx.ERROR)
        end
        return ngx.exit(BAD_GATEWAY)
    end
end

return _M
