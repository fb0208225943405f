--- Measures from within how long this worker does not come back to its event loop: what a stalled
-- worker does to every client at once, latencies seen from outside only show by chance.
local ffi = require "ffi"

local max = math.max

local _M = {}

ffi.cdef [[
typedef struct { long tv_sec; long tv_nsec; } headgate_timespec;
int clock_gettime(int clock, headgate_timespec *time);
]]

local MONOTONIC, PROCESS_CPU = 1, 2
local STEP = 0.001

--- Make a clock that reads milliseconds.
local function clock(id)
    local time = ffi.new("headgate_timespec")
    return function()
        ffi.C.clock_gettime(id, time)
        return tonumber(time.tv_sec) * 1000 + tonumber(time.tv_nsec) / 1000000
    end
end

--- The clocks of the operating system; specs hand in their own.
_M.CLOCKS = { wall = clock(MONOTONIC), cpu = clock(PROCESS_CPU) }

--- Sleep a millisecond again and again, and see how late each one ends and what the worker computed
-- meanwhile. A turn that is late without computing was not the worker's doing: others had the core.
-- @tparam number duration milliseconds
-- @tparam function sleep as ngx.sleep
-- @tparam table clocks wall, cpu: functions that give milliseconds
-- @treturn table maxLateMs, maxCpuMs: of one turn; turns; over20: those that computed for more
--   than 20 ms
function _M.measure(duration, sleep, clocks)
    local seen = { maxLateMs = 0, maxCpuMs = 0, turns = 0, over20 = 0 }
    local start = clocks.wall()
    local wall, cpu = start, clocks.cpu()
    while wall - start < duration do
        sleep(STEP)
        local wall_now, cpu_now = clocks.wall(), clocks.cpu()
        seen.turns = seen.turns + 1
        seen.maxLateMs = max(seen.maxLateMs, wall_now - wall - STEP * 1000)
        seen.maxCpuMs = max(seen.maxCpuMs, cpu_now - cpu)
        if cpu_now - cpu > 20 then
            seen.over20 = seen.over20 + 1
        end
        wall, cpu = wall_now, cpu_now
    end
    return seen
end

return _M
