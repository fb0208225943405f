package.path = "./?.lua;./spec/?.lua;" .. package.path

local budget = require "headgate.budget"
local peers_fixture = require "peers_fixture"

describe("retry budget", function()
    local clock, dict

    before_each(function()
        clock = peers_fixture.clock()
        dict = peers_fixture.dict(clock)
    end)

    local function new(pushed)
        local b = budget.new({ dict = dict, now = clock.now }, "u", 0, clock.at)
        b:configure(pushed)
        return b
    end

    --- Send requests that all fail, at a rate, each with up to two retries; count the attempts.
    local function fail(b, requests, rate)
        local attempts, denied = 0, 0
        for _ = 1, requests do
            clock.at = clock.at + 1 / rate
            attempts = attempts + 1
            local promised = b:began()
            for _ = 1, 2 do
                if not promised then
                    break
                end
                if not b:spend() then
                    denied = denied + 1
                    break
                end
                attempts = attempts + 1
                promised = b:promise()
            end
        end
        return attempts, denied
    end

    it("bounds the retries of a total failure", function()
        for _, rate in ipairs({ 1, 10, 100, 5000 }) do
            local n = rate * 10
            local attempts = fail(new(), n, rate)
            assert.is_true(attempts <= n * 1.2 + 3 * 11, rate .. ": " .. attempts)
            assert.is_true(attempts >= math.min(n * 3, n * 1.1), rate .. ": " .. attempts)
        end
    end)

    it("bounds them after a long time without failures", function()
        local b = new()
        for _ = 1, 100000 do
            clock.at = clock.at + 0.001
            b:began()
        end
        local attempts = fail(b, 1000, 1000)
        -- A second's worth may have been saved.
        assert.is_true(attempts <= 1000 * 1.2 + 200 + 6, attempts)
    end)

    it("always allows some a second, over all workers", function()
        local a, b = new(), new()
        local granted = 0
        for _ = 1, 10 do
            for _, worker in ipairs({ a, b }) do
                granted = granted + (worker:spend() and 1 or 0)
            end
        end
        assert.equal(3, granted)
        clock.at = clock.at + 1
        assert.is_true(a:spend())
    end)

    it("takes what was pushed", function()
        local b = new({ percent = 100, min = 1 })
        b:began()
        assert.same({ true, true, false }, { b:spend(), b:spend(), b:spend() })
        b = new({ unlimited = true })
        for _ = 1, 100 do
            assert.is_true(b:spend())
        end
        assert.is_true(b:promise())
    end)

    it("promises no retries that it will not pay for", function()
        -- 100 requests a second that time out 5 s later.
        local b, waiting, denied, paid = new(), {}, 0, 0
        for i = 1, 6000 do
            clock.at = clock.at + 0.01
            if b:began() then
                waiting[i + 500] = true
            end
            if waiting[i] then
                if b:spend() then
                    paid = paid + (i > 1500 and 1 or 0)
                else
                    denied = denied + (i > 1500 and 1 or 0)
                end
            end
        end
        -- Those of the first seconds could not know; afterwards a promise holds.
        assert.is_true(paid >= 4500 * 0.15, paid)
        assert.is_true(denied <= paid * 0.1, denied .. " denied, " .. paid .. " paid")
    end)

    it("counts alone when the dict is full", function()
        dict.full = true
        local b = new()
        assert.same({ true, true, true, false },
            { b:spend(), b:spend(), b:spend(), b:spend() })
    end)
end)
