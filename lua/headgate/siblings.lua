--- Which worker processes there still are: a report outlives the worker that wrote it.
local match = string.match

local _M = {}

--- Read state and parent of a process (proc(5), stat). The name in parentheses may hold anything.
local function read(open, pid)
    local file = open("/proc/" .. pid .. "/stat", "r")
    if not file then
        return nil
    end
    local text = file:read("*a")
    file:close()
    return match(text or "", "^.*%) (%u) (%d+) ")
end

--- Make the test. Where /proc does not show the own process it shows nothing: then all are there.
-- @tparam function open io.open
-- @treturn function(pid) true unless that is no living child of our own parent
function _M.new(open)
    local _, parent = read(open, "self")
    return function(pid)
        if not parent then
            return true
        end
        local state, its_parent = read(open, pid)
        return its_parent == parent and state ~= "Z" and state ~= "X"
    end
end

return _M
