package.path = "./?.lua;./spec/?.lua;" .. package.path

local apply = require "headgate.apply"
local fixture = require "fixture"

local function start(limit)
    local dict, meta = fixture.dict(limit), fixture.dict()
    return apply.new({ dict = dict, meta = meta, revision = 3 }), dict, meta
end

local H1, H2 = fixture.hash(1), fixture.hash(2)

describe("apply", function()
    it("sets bodies, pointers and the revision, then deletes and drops", function()
        local step, dict, meta = start()
        dict.values["host/old"] = H2
        dict.values["body/" .. H2] = "old"
        assert.is_true(step:all(fixture.record("B", H1, "new") .. fixture.record("P", "host/a", H1)
            .. fixture.record("R", "", "3") .. fixture.record("D", "host/old", "")
            .. fixture.record("X", H2, "")))
        assert.same({ ["body/" .. H1] = "new", ["host/a"] = H1 }, dict.values)
        assert.equal(3, meta:get("revision"))
    end)

    it("skips a body that is there", function()
        local step, dict = start()
        dict.values["body/" .. H1] = "kept"
        assert.is_true(step:record("B", H1, "other"))
        assert.equal("kept", dict:get("body/" .. H1))
    end)

    local refused = {
        ["a pointer to no body"] = { "P", "host/a", H1 },
        ["a pointer of an unknown kind"] = { "P", "boot", H1 },
        ["a pointer without a kind"] = { "P", "/x", H1 },
        ["a body whose key is no hash"] = { "B", "host/a", "x" },
        ["another revision"] = { "R", "", "4" },
        ["a revision that is no number"] = { "R", "", "0x3" },
        ["a delete before the commit"] = { "D", "host/a", "" },
        ["a drop before the commit"] = { "X", H1, "" },
    }
    for name, r in pairs(refused) do
        it("refuses " .. name, function()
            local step, dict = start()
            local ok, kind = step:record(r[1], r[2], r[3])
            assert.is_nil(ok)
            assert.equal("record", kind)
            assert.same({}, dict.values)
        end)
    end

    it("refuses bodies and pointers after the commit", function()
        local step = start()
        assert.is_true(step:record("R", "", "3"))
        assert.is_nil(step:record("B", H1, "x"))
        assert.is_nil(step:record("R", "", "3"))
    end)

    it("refuses another schema", function()
        local step = start()
        assert.is_true(step:record("B", "schema", "1"))
        local _, kind = step:record("B", "schema", "2")
        assert.equal("schema", kind)
    end)

    it("takes bodies back when there is no memory for all", function()
        local step, dict = start(120)
        dict.values["host/a"] = H2
        local ok, kind = step:all(fixture.record("B", H1, "x")
            .. fixture.record("B", fixture.hash(3), ("y"):rep(99)))
        assert.is_nil(ok)
        assert.equal("memory", kind)
        step:undo()
        assert.same({ ["host/a"] = H2 }, dict.values)
    end)
end)
