package.path = "./?.lua;./spec/?.lua;" .. package.path

local fixture = require "fixture"
local state = require "headgate.state"

describe("state", function()
    local dict, meta, cells, report, view, things, builds

    before_each(function()
        dict, meta, report, builds = fixture.dict(), fixture.dict(), fixture.report(), 0
        cells = fixture.cells()
        view = state.new({
            dict = dict, meta = meta, cells = cells, decode = fixture.decode, report = report,
            yield = function() end,
        })
        things = view:kind("thing", function(decoded, name, previous)
            builds = builds + 1
            if decoded.bad then
                error("bad")
            end
            return { name = name, n = decoded.n, previous = previous and previous.n }
        end)
    end)

    local function commit(revision)
        meta.values.revision = revision
        cells:tell_stamp(revision)
    end

    local function push(revision, name, hash, body)
        if body then
            dict.values["body/" .. hash] = body
        end
        dict.values["thing/" .. name] = hash
        commit(revision)
    end

    it("decodes what is used, once for each body", function()
        push(1, "a", "h1", '{"n":1}')
        push(1, "b", "h2", '{"n":2}')
        assert.equal(1, things:get("a", view:stamp()).n)
        assert.equal(1, things:get("a", view:stamp()).n)
        assert.equal(1, builds)
        commit(2) -- a change elsewhere
        things:get("a", view:stamp())
        assert.equal(1, builds)
        push(3, "a", "h3", '{"n":3}')
        assert.equal(3, things:get("a", view:stamp()).n)
        assert.equal(1, things:get("a", view:stamp()).previous)
        assert.equal(2, builds)
    end)

    it("tells bodies apart by hashes as they are pushed", function()
        local first, second = ("0123456789abcdef"):rep(2), ("1123456789abcdef"):rep(2)
        push(1, "a", first, '{"n":1}')
        things:get("a", 1)
        commit(2)
        things:get("a", 2)
        assert.equal(1, builds)
        push(3, "a", second, '{"n":2}')
        assert.equal(2, things:get("a", 3).n)
        assert.equal(2, builds)
    end)

    it("sees no change before the revision", function()
        push(1, "a", "h1", '{"n":1}')
        things:get("a", 1)
        push(1, "a", "h2", '{"n":2}')
        assert.equal(1, things:get("a", 1).n)
    end)

    it("holds what was read at the same revision, and no more", function()
        push(1, "a", "h1", '{"n":1}')
        assert.is_nil(things:held("a", 1))
        things:get("a", 1)
        assert.equal(1, things:held("a", 1).n)
        assert.is_nil(things:held("a", 2))
        push(1, "bad", "h2", "nonsense")
        things:get("bad", 1)
        assert.is_nil(things:held("bad", 1))
    end)

    it("decodes what it was told to forget when it is asked for again", function()
        push(1, "a", "h1", '{"n":1}')
        things:get("a", 1)
        things:forget("a")
        assert.is_nil(things:held("a", 1))
        assert.equal(1, things:get("a", 1).n)
        assert.equal(2, builds)
    end)

    it("knows what is not there, and what left", function()
        assert.is_nil(things:get("a", view:stamp()))
        push(1, "a", "h1", '{"n":1}')
        assert.is_table(things:get("a", view:stamp()))
        dict.values["thing/a"] = nil
        commit(2)
        local value, broken = things:get("a", view:stamp())
        assert.is_nil(value)
        assert.is_nil(broken)
    end)

    it("keeps the old object when the new one cannot be used, and tells", function()
        push(1, "a", "h1", '{"n":1}')
        things:get("a", view:stamp())
        for revision, body in ipairs({ "nonsense", "7", '{"bad":true}' }) do
            push(revision + 1, "a", "x" .. revision, body)
            assert.equal(1, things:get("a", view:stamp()).n)
            assert.is_string(report.errors["thing/a"])
        end
        push(9, "a", "missing")
        assert.equal(1, things:get("a", view:stamp()).n)
        assert.equal("its body is missing", report.errors["thing/a"])
        push(10, "a", "h2", '{"n":2}')
        assert.equal(2, things:get("a", view:stamp()).n)
        assert.is_nil(report.errors["thing/a"])
    end)

    it("tells an object that never could be used from none", function()
        push(1, "a", "h1", "nonsense")
        for _ = 1, 2 do
            local value, broken = things:get("a", view:stamp())
            assert.is_nil(value)
            assert.is_true(broken)
        end
        push(2, "a", "h2", '{"n":2}')
        assert.equal(2, things:get("a", view:stamp()).n)
    end)

    it("reads the pointer again when its body has just been dropped", function()
        push(1, "a", "h2", '{"n":2}')
        local get, first = dict.get, true
        rawset(dict, "get", function(self, key)
            if key == "thing/a" and first then
                first = false
                return "h1"
            end
            return get(self, key)
        end)
        assert.equal(2, things:get("a", 1).n)
    end)

    it("sweeps what is no longer pushed, keeps what changed", function()
        push(1, "a", "h1", '{"n":1}')
        push(1, "b", "h2", '{"n":2}')
        things:get("a", view:stamp())
        things:get("b", view:stamp())
        assert.is_false(view:sweep()) -- nothing was deleted
        dict.values["thing/a"] = nil
        meta.values.deletes = 1
        push(2, "b", "h3", '{"n":3}')
        assert.is_true(view:sweep())
        assert.is_false(view:sweep())
        assert.is_nil(things.values.a)
        assert.equal(3, things:get("b", view:stamp()).n)
        assert.equal(2, things:get("b", view:stamp()).previous)
    end)

    it("asks the dict only when the word changed", function()
        push(1, "a", "h1", '{"n":1}')
        view:stamp()
        meta.values.revision = 2 -- committed, but not told yet
        assert.equal(1, view:stamp())
        cells:tell_stamp(2)
        assert.equal(2, view:stamp())
        meta.values.revision = 2 ^ 32 + 2 -- the word is that of 2 again
        cells:tell_stamp(7)
        assert.equal(2 ^ 32 + 2, view:stamp())
        assert.equal(2, cells:stamp())
    end)

    it("tells all workers what one committed that died before it told", function()
        local other = state.new({
            dict = dict, meta = meta, cells = cells, decode = fixture.decode,
            report = fixture.report(),
        })
        commit(1)
        assert.equal(1, other:stamp())
        meta.values.revision = 2
        assert.equal(2, view:refresh())
        assert.equal(2, other:stamp())
    end)

    it("sees deletes that follow the commit in a later part of the push", function()
        push(1, "a", "h1", '{"n":1}')
        push(2, "b", "h2", '{"n":2}') -- the first part, which commits
        assert.equal(1, things:get("a", view:stamp()).n) -- asked for in between
        dict.values["thing/a"] = nil -- the second part
        meta.values.deletes = 1
        local before = view:stamp()
        view:refresh()
        assert.not_equal(before, view:stamp())
        assert.is_nil(things:get("a", view:stamp()))
        assert.equal(2, view:committed())
    end)

    --- A worker that is interrupted when it has read the dict for the nth time.
    local function interrupted(nth, interrupt)
        local reads = 0
        return state.new({
            dict = dict, cells = cells, decode = fixture.decode, report = fixture.report(),
            meta = { get = function(_, key)
                local value = meta.values[key]
                if key == "revision" then
                    reads = reads + 1
                    if reads == nth then
                        interrupt()
                    end
                end
                return value
            end },
        })
    end

    it("leaves no worker behind when commits come while one tells", function()
        for nth = 1, 2 do
            commit(1)
            meta.values.revision = 2 -- nobody has told it
            local other = interrupted(nth, function() commit(3) end)
            other:refresh()
            assert.equal(3, other:stamp(), nth)
            assert.equal(3, view:stamp(), nth)
            meta.values.revision = nil
        end
    end)

    it("reports each revision once", function()
        commit(4)
        view:stamp()
        view:stamp()
        assert.equal(1, report.written)
        assert.equal(4, report.revision)
    end)
end)
