local stall = require "headgate.stall"

describe("the meter of stalls", function()
    it("tells turns that computed from turns that waited for the core", function()
        -- What each sleep of one millisecond takes, and what of it the worker computed.
        local turns = { { 1, 0.1 }, { 31, 30 }, { 51, 0.1 }, { 1, 0.1 }, { 16, 0 } }
        local wall, cpu, n = 1000, 50, 0
        local seen = stall.measure(100, function(seconds)
            assert.equal(0.001, seconds)
            n = n + 1
            wall, cpu = wall + turns[n][1], cpu + turns[n][2]
        end, { wall = function() return wall end, cpu = function() return cpu end })
        assert.equal(5, seen.turns)
        assert.equal(50, seen.maxLateMs)
        assert.near(30, seen.maxCpuMs, 0.001)
        assert.equal(1, seen.over20)
    end)

    it("reads the clocks of the system", function()
        local clocks = stall.CLOCKS
        local wall, cpu = clocks.wall(), clocks.cpu()
        local sum = 0
        repeat
            for i = 1, 100000 do sum = sum + i end
        until clocks.cpu() - cpu > 5
        assert.is_true(clocks.wall() - wall >= 4, sum)
    end)
end)
