--- Which load of the configuration is in force. While nginx reloads, workers of the old load go on
-- accepting for a moment, with the old Lua files: they must not answer for the new one. The master
-- numbers its loads; a load is in force from the first start of one of its workers, so that one
-- that never comes up changes nothing.
local _M = {}

--- In the master, once for each load.
-- @treturn number the number of this load
function _M.number(meta)
    return assert(meta:incr("load", 1, 0))
end

--- In a worker that takes requests: its load is in force, unless a later one is.
function _M.claim(meta, number)
    if number > (meta:get("current") or 0) then
        meta:safe_set("current", number)
    end
end

--- Tell whether a later load is in force.
function _M.over(meta, number)
    return number < (meta:get("current") or 0)
end

return _M
