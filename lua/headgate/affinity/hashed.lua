--- No binding but what the hash of the request makes by itself: it only reads the key.
local _M = {}
local mt = { __index = _M }

--- @tparam table o kind; key: see hash_key.lua, or nil
-- @treturn table with pick(upstream, ctx, pick)
function _M.new(o)
    return setmetatable({ kind = o.kind, key = o.key }, mt)
end

--- Pick by the algorithm, which gets the key of the request. The other kinds do this, too.
-- @tparam table upstream
-- @tparam table ctx tried: set of addresses that failed, or nil
-- @tparam function pick function(upstream, ctx) of the algorithm
-- @treturn table|nil peer
function _M:pick(upstream, ctx, pick)
    ctx.key = self.key and self.key:read() or nil
    return pick(upstream, ctx)
end

return _M
