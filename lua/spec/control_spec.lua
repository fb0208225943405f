package.path = "./?.lua;./spec/?.lua;" .. package.path

local control = require "headgate.control"
local fixture = require "fixture"
local push_lock = require "headgate.push_lock"

local function headers(changed)
    local h = {
        ["X-Headgate-Schema"] = "1", ["X-Headgate-Pusher"] = "p1", ["X-Headgate-Revision"] = "5",
        ["X-Headgate-Base"] = "4", ["X-Headgate-Part"] = "1/2",
    }
    for k, v in pairs(changed or {}) do
        h[k] = v
    end
    return function(name) return h[name] end
end

describe("push headers", function()
    it("are read", function()
        assert.same({ schema = 1, pusher = "p1", revision = 5, base = 4, part = 1, parts = 2 },
            control.read_push(headers()))
        assert.equal("*", control.read_push(headers({ ["X-Headgate-Base"] = "*" })).base)
    end)

    local bad = {
        { "X-Headgate-Schema", "one" }, { "X-Headgate-Pusher", "a b" },
        { "X-Headgate-Revision", "1e3" },
        { "X-Headgate-Revision", "-1" }, { "X-Headgate-Revision", ("9"):rep(16) },
        { "X-Headgate-Base", "" }, { "X-Headgate-Part", "0/1" }, { "X-Headgate-Part", "2/1" },
        { "X-Headgate-Part", "1" },
    }
    for _, c in ipairs(bad) do
        it("refuse " .. c[1] .. ": " .. c[2], function()
            local push, err = control.read_push(headers({ [c[1]] = c[2] }))
            assert.is_nil(push)
            assert.is_string(err)
        end)
    end
end)

describe("push lock", function()
    local function push(pusher, revision, part)
        return { pusher = pusher, revision = revision, part = part }
    end

    it("lets one pusher in, part by part", function()
        local lock = push_lock.new(fixture.dict())
        assert.is_true(lock:take(push("a", 5, 1)))
        assert.same({ nil, "busy", "a" }, { lock:take(push("b", 5, 1)) })
        assert.is_true(lock:take(push("a", 5, 2)))
        assert.same({ nil, "base", "a" }, { lock:take(push("a", 5, 4)) })
        assert.same({ nil, "base", "a" }, { lock:take(push("a", 6, 3)) })
        assert.is_true(lock:take(push("a", 6, 1)))
        lock:release()
        assert.is_true(lock:take(push("b", 5, 1)))
    end)

    it("does not take a later part without the first", function()
        local lock = push_lock.new(fixture.dict())
        assert.same({ nil, "base" }, { lock:take(push("a", 5, 2)) })
    end)
end)
