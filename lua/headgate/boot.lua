--- What happens once per start of nginx and once per reload, in the master: tell a new dict from a
-- kept one, name it, fill it from the state log.
local statelog = require "headgate.statelog"

local _M = {}

--- Make the shared dicts ready.
-- The state dict is new when nginx started, and when a reload changed its size; the small dict
-- may then still hold the revision of the old one. A mark in both tells.
-- @tparam table o dict, meta, state_log: path or nil, open, crc32, new_id: function() string,
--   encode: JSON encoder
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string what is wrong
function _M.start(o)
    local mark = o.dict:get("boot")
    if mark and mark == o.meta:get("boot") then
        return true
    end
    local ok, err = o.meta:safe_set("revision", 0)
    if not ok then
        return nil, err
    end
    local loaded = statelog.load({
        path = o.state_log, dict = o.dict, meta = o.meta, open = o.open, crc32 = o.crc32,
    })
    ok, err = o.meta:safe_set("loaded", o.encode({
        from = loaded.from, revision = loaded.revision, error = loaded.error or "",
    }))
    if not ok then
        return nil, err
    end
    mark = o.new_id()
    o.meta:delete("pusher")
    o.meta:delete("push")
    ok, err = o.meta:safe_set("boot", mark)
    if not ok then
        return nil, err
    end
    return o.dict:safe_set("boot", mark)
end

return _M
