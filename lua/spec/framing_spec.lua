package.path = "./?.lua;./spec/?.lua;" .. package.path

local fixture = require "fixture"
local framing = require "headgate.framing"

describe("framing", function()
    --- What becomes of an answer: the code that it ends with, and whether that is logged.
    local function check(status, upgrade)
        local code, logged = nil, false
        framing.new({
            ngx = {
                ERR = 4, ERROR = -1, log = function() logged = true end,
                exit = function(c) code = c end,
            },
            status = function() return status end,
            handover = fixture.handover(),
            get = function(name) return ({ headgate_upgrade = upgrade })[name] end,
        })()
        assert.equal(code ~= nil, logged)
        return code
    end

    it("lets final answers and tunnels through", function()
        for _, status in ipairs({ 200, 204, 304, 404, 502, 999 }) do
            assert.is_nil(check(status))
        end
        assert.is_nil(check(101, "websocket"))
    end)

    it("refuses what has no framing", function()
        for _, status in ipairs({ 0, 99, 100, 103, 199 }) do
            assert.equal(502, check(status))
            assert.equal(502, check(status, "websocket"))
        end
        assert.equal(502, check(101, ""))
        assert.equal(502, check(101))
    end)

    it("closes the connection where no head can be sent", function()
        assert.equal(-1, check(9))
    end)
end)
