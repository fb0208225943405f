--- What the router tells the later phases of a request, by the place of the request in memory: a
-- variable of nginx for it costs ten times as much, for its name is looked up, and its value copied
-- and made a string of Lua again, in each phase.
local ffi = require "ffi"

local cast, tonumber = ffi.cast, tonumber
local ADDRESS = ffi.typeof("uintptr_t")

local _M = {}

--- @tparam table o get_request: of resty.core.base
-- @treturn table functions for the request at hand: give(upstream), tell(label); upstream(),
--   label(): what was given and told, or nil; forget(). Where nothing calls forget, as many
--   strings stay as there ever were requests at a time.
function _M.new(o)
    local get_request = o.get_request
    -- Only strings: whoever is found here by a later request at the same place is no object that
    -- should be gone.
    local upstreams, labels = {}, {}

    -- Not a tail call: see variable.lua.
    local function place()
        local at = tonumber(cast(ADDRESS, get_request()))
        return at
    end

    return {
        give = function(upstream) upstreams[place()] = upstream end,
        tell = function(label) labels[place()] = label end,
        upstream = function() return upstreams[place()] end,
        label = function() return labels[place()] end,
        forget = function()
            local at = place()
            upstreams[at], labels[at] = nil, nil
        end,
    }
end

return _M
