package.path = "./?.lua;./spec/?.lua;" .. package.path

local fixture = require "fixture"
local record = require "headgate.record"

describe("record", function()
    it("reads what the daemon writes", function()
        local text = fixture.record("P", "host/a", "0123") .. fixture.record("R", "", "7")
        local op, key, value, at = record.parse(text, 1)
        assert.same({ "P", "host/a", "0123" }, { op, key, value })
        op, key, value, at = record.parse(text, at)
        assert.same({ "R", "", "7", #text + 1 }, { op, key, value, at })
    end)

    it("refuses what is cut short, at every length", function()
        local text = fixture.record("B", "key", "value")
        for n = 0, #text - 1 do
            local op, err = record.parse(text:sub(1, n), 1)
            assert.is_nil(op)
            assert.equal("record is cut short", err)
        end
    end)

    it("refuses unknown operations and huge values", function()
        assert.is_nil(record.parse("Z" .. ("\0"):rep(6), 1))
        local _, err = record.parse("B\0\0\255\255\255\255", 1)
        assert.equal("value is too long", err)
    end)
end)
