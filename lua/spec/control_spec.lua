package.path = "./?.lua;./spec/?.lua;" .. package.path

local control = require "headgate.control"
local fixture = require "fixture"
local push_lock = require "headgate.push_lock"
local report = require "headgate.report"

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
        local lock = push_lock.new(fixture.dict(), function() return 1 end)
        assert.is_true(lock:take(push("a", 5, 1)))
        assert.same({ nil, "busy", "a" }, { lock:take(push("b", 5, 1)) })
        assert.is_true(lock:take(push("a", 5, 2)))
        assert.same({ nil, "base", "a" }, { lock:take(push("a", 5, 4)) })
        assert.same({ nil, "base", "a" }, { lock:take(push("a", 6, 3)) })
        assert.is_true(lock:take(push("a", 6, 1)))
        lock:release()
        assert.is_true(lock:take(push("b", 5, 1)))
    end)

    it("is not kept for a dead pusher by a clock that was put back", function()
        local at, dict = 1, fixture.dict() -- whose keys never end
        local lock = push_lock.new(dict, function() return at end)
        assert.is_true(lock:take(push("a", 5, 1)))
        at = 10.9
        assert.same({ nil, "busy", "a" }, { lock:take(push("b", 5, 1)) })
        at = 11
        assert.same({ nil, "base" }, { lock:take(push("a", 5, 2)) })
        assert.is_true(lock:take(push("b", 5, 1)))
        assert.is_true(lock:take(push("b", 5, 2)))
    end)

    it("does not take a later part without the first", function()
        local lock = push_lock.new(fixture.dict(), function() return 1 end)
        assert.same({ nil, "base" }, { lock:take(push("a", 5, 2)) })
    end)
end)

describe("a control call", function()
    --- A worker's handler; reports is what workers wrote, retired whether it is one of the past.
    local function call(o)
        local dict, meta = fixture.dict(), o.meta or fixture.dict()
        dict:safe_set("boot", "b")
        meta:safe_set("boot", o.meta_boot or "b")
        for pid, generation in pairs(o.reports or {}) do
            meta:safe_set("w/" .. pid, fixture.encode({
                pid = pid, generation = generation, revision = 0, at = 0, errors = {},
            }))
        end
        dict.capacity, dict.free_space = function() return 1 end, function() return 1 end
        meta.get_keys = function()
            local keys = {}
            for k in pairs(meta.values) do
                keys[#keys + 1] = k
            end
            return keys
        end
        local answer = {}
        control.new({
            dict = dict, meta = meta, config = { build = "new", generation = "g2" },
            encode = fixture.encode, decode = fixture.decode,
            state = { refresh = function() return meta.values.revision or 0 end },
            master_pid = function() return 1 end, nginx_version = "1.22.1",
            retired = function() return o.retired end,
            siblings = function() return function(pid) return pid ~= o.gone end end,
            now = function() return o.now or 0 end,
            ngx = {
                header = {}, now = function() return 0 end,
                req = { get_method = function() return o.method or "GET" end },
                var = { uri = o.uri or "/v1/state" },
                print = function(body) answer.body = fixture.decode(body) end,
            },
        })()
        return answer.body
    end

    for _, c in ipairs({
        { "GET", "/v1/state" }, { "PUT", "/v1/state" }, { "GET", "/v1/keys" },
        { "POST", "/v1/regex" }, { "GET", "/v1/peers" },
    }) do
        it("is refused by a worker of the past: " .. c[1] .. " " .. c[2], function()
            assert.equal("exiting", call({ method = c[1], uri = c[2], retired = true }).error)
            assert.equal("exiting", call({ method = c[1], uri = c[2], meta_boot = "c" }).error)
        end)
    end

    it("tells build and generation of the worker that answers, and who lives", function()
        local s = call({ reports = { [7] = "g1", [8] = "g2" }, gone = 7 })
        assert.same({ "new", "g2" }, { s.luaBuild, s.generation })
        assert.equal(1, #s.workers)
        assert.equal(8, s.workers[1].pid)
    end)

    it("tells which workers take no more connections", function()
        local meta, gone = fixture.dict(), false
        meta:safe_set("boot", "b")
        for pid, leaving in pairs({ [7] = function() return gone end, [8] = false }) do
            local r = report.new({
                meta = meta, now = function() return 0 end, encode = fixture.encode,
                leaving = leaving or nil,
            })
            r.pid = pid
            r:write()
            gone = true
            r:write()
        end
        local s = call({ meta = meta })
        assert.same({ true }, { s.workers[1].leaving, s.workers[2].leaving })
    end)

    it("tells nobody whose report is not renewed, and forgets it", function()
        local meta = fixture.dict()
        local function workers(now)
            local s = call({ reports = { [8] = "g2" }, meta = meta, now = now })
            return #s.workers, meta:get("w/8") ~= nil
        end
        assert.same({ 1, true }, { workers(10) })
        assert.same({ 0, false }, { workers(10.1) })
    end)
end)

describe("a worker's report", function()
    -- Keys end by the clock of the day: one that was put forward took the VIP from a host whose
    -- workers were all well.
    it("does not end with the clock of the day", function()
        local meta = fixture.dict()
        function meta:safe_set(key, value, seconds)
            self.values[key], self.seconds = value, seconds
            return true
        end
        local r = report.new({
            meta = meta, now = function() return 7 end, encode = fixture.encode,
        })
        r.pid = 8
        assert.is_true(r:write())
        assert.is_nil(meta.seconds)
        assert.equal(7, fixture.decode(meta:get("w/8")).at)
    end)
end)
