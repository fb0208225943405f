package.path = "./?.lua;./spec/?.lua;" .. package.path

local peers_fixture = require "peers_fixture"
local tally = require "headgate.tally"

describe("a tally", function()
    local clock, dict

    before_each(function()
        clock = peers_fixture.clock()
        dict = peers_fixture.dict(clock)
    end)

    it("counts until its time is over", function()
        assert.equal(1, tally(dict, "x", 10))
        clock.at = clock.at + 9
        assert.equal(2, tally(dict, "x", 10))
        clock.at = clock.at + 1
        assert.equal(1, tally(dict, "x", 10))
        assert.equal(1, tally(dict, "y"))
    end)

    it("goes on in a full dict and begins nothing there", function()
        tally(dict, "x")
        dict.full = true
        assert.equal(2, tally(dict, "x"))
        assert.is_nil(tally(dict, "y"))
        assert.is_nil(dict:get("y"))
    end)

    it("counts what another worker began meanwhile", function()
        local incr = dict.incr
        function dict.incr(...)
            dict.incr = incr
            dict:safe_set("x", 5)
            return nil, "not found", ...
        end
        assert.equal(6, tally(dict, "x"))
    end)
end)
