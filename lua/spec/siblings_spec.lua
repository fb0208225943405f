package.path = "./?.lua;./spec/?.lua;" .. package.path

local siblings = require "headgate.siblings"

--- A /proc of these files.
local function proc(files)
    return function(path)
        local text = files[path]
        return text and { read = function() return text end, close = function() end }
    end
end

describe("siblings", function()
    local there = siblings.new(proc({
        ["/proc/self/stat"] = "11 (nginx) R 10 10 10 0",
        ["/proc/12/stat"] = "12 (nginx) S 10 10 10 0",
        ["/proc/13/stat"] = "13 (nginx) Z 10 10 10 0",
        ["/proc/14/stat"] = "14 (sh) S 1 14 14 0",
        ["/proc/15/stat"] = "15 (a) S 10 (b) S 10 15 15 0",
        ["/proc/16/stat"] = "",
    }))

    it("are living children of the same master", function()
        assert.is_true(there(12))
        assert.is_true(there(15)) -- an odd name
    end)

    it("are not the dead, nor others that have their number now", function()
        for _, pid in ipairs({ 13, 14, 16, 17 }) do
            assert.is_false(there(pid))
        end
    end)

    it("are all where /proc shows nothing", function()
        assert.is_true(siblings.new(proc({}))(12))
    end)
end)
