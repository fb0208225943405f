package.path = "./?.lua;./spec/?.lua;" .. package.path

local heap = require "headgate.heap"

describe("heap", function()
    local built, kib, set, one

    before_each(function()
        built, kib, set = 0, 1000, {}
        one = heap.new({
            built = function() return built end,
            collect = function(what, value)
                if what == "count" then
                    return kib
                elseif what == "collect" then
                    return 0
                end
                set[what] = value
                set.calls = (set.calls or 0) + 1
            end,
        })
        one:start()
    end)

    it("collects early while much is decoded, and later when it is served", function()
        assert.same({ setstepmul = 400, setpause = 300, calls = 2 }, set)
        built = 600
        one:tick()
        assert.equal(108, set.setpause)
        kib = 20000
        built = 1200
        one:tick()
        assert.equal(108, set.setpause)
        built = 1300 -- a few changes are no load
        one:tick()
        assert.equal(160, set.setpause)
        one:tick()
        assert.equal(4, set.calls)
    end)

    -- In a process of its own: in this one other specs left a heap behind.
    local GROW = [[
        package.path = "./?.lua;" .. package.path
        local built, paced = 0, nil
        paced = require("headgate.heap").new({
            built = function() return built end, collect = collectgarbage,
        })
        paced:start()
        local kept, base, peak = {}, collectgarbage("count"), 0
        for n = 1, 20000 do
            kept[n] = { n, {} }
            kept.garbage = { n, { n, n }, { n, n }, { n, n } }
            built = n
            if n % 1000 == 0 then
                paced:tick()
                peak = n > 2000 and math.max(peak, collectgarbage("count") - base) or peak
            end
        end
        collectgarbage()
        print(#kept, peak / (collectgarbage("count") - base))
    ]]

    it("keeps a real heap near what lives while it grows", function()
        local name = os.tmpname()
        local file = assert(io.open(name, "w"))
        file:write(GROW)
        file:close()
        local run = assert(io.popen("luajit " .. name))
        local kept, times = run:read("*n", "*n")
        run:close()
        os.remove(name)
        assert.equal(20000, kept)
        -- 1.5 by LuaJIT's own pace.
        assert.is_true(times < 1.3, times)
    end)
end)
