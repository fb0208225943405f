package.path = "./?.lua;./spec/?.lua;" .. package.path

local fixture = require "fixture"
local statelog = require "headgate.statelog"

local H1, H2 = fixture.hash(1), fixture.hash(2)

local function batch(flags, revision, payload)
    local head = fixture.u32(flags) .. fixture.u32(0) .. fixture.u32(revision)
        .. fixture.u32(#payload)
    return "HGB1" .. head .. fixture.u32(fixture.crc32(head .. payload)) .. payload
end

local SCHEMA = fixture.record("B", "schema", "1")
local FIRST = batch(0, 5, SCHEMA .. fixture.record("B", H1, "one"))
    .. batch(1, 5, fixture.record("P", "host/a", H1) .. fixture.record("R", "", "5"))
local SECOND = batch(1, 6, SCHEMA .. fixture.record("B", H2, "two")
    .. fixture.record("P", "host/a", H2) .. fixture.record("R", "", "6")
    .. fixture.record("X", H1, ""))

--- Load a text; gives what load tells and the dict.
local function load(text, limit)
    local dict, meta = fixture.dict(limit), fixture.dict()
    local loaded = statelog.load({
        path = "state.log", dict = dict, meta = meta, crc32 = fixture.crc32,
        open = function()
            local file = assert(io.tmpfile())
            file:write(text)
            file:seek("set")
            return file
        end,
    })
    return loaded, dict.values
end

describe("statelog", function()
    it("computes the CRC of IEEE", function()
        assert.equal(0xCBF43926, fixture.crc32("123456789"))
    end)

    it("applies whole pushes in order", function()
        local loaded, values = load("HGSTATE1" .. FIRST .. SECOND)
        assert.same({ from = "log", revision = 6 }, loaded)
        assert.same({ ["host/a"] = H2, ["body/" .. H2] = "two" }, values)
    end)

    it("stops at the last whole push, wherever the tail is cut", function()
        for cut = 1, #SECOND - 1 do
            local loaded, values = load("HGSTATE1" .. FIRST .. SECOND:sub(1, cut))
            assert.equal(5, loaded.revision)
            assert.is_string(loaded.error)
            assert.same({ ["host/a"] = H1, ["body/" .. H1] = "one" }, values)
        end
    end)

    it("is empty when the first push is not whole", function()
        for cut = 0, #FIRST - 1 do
            local loaded, values = load("HGSTATE1" .. FIRST:sub(1, cut))
            assert.equal("empty", loaded.from)
            assert.same({}, values)
        end
    end)

    it("stops at a bit that is bent", function()
        for at = 1, #SECOND, 3 do
            local byte = SECOND:byte(at)
            byte = byte % 2 == 0 and byte + 1 or byte - 1
            local bent = SECOND:sub(1, at - 1) .. string.char(byte) .. SECOND:sub(at + 1)
            local loaded = load("HGSTATE1" .. FIRST .. bent)
            -- The revision in the header of a batch is covered by the checksum, too.
            assert.equal(5, loaded.revision)
        end
    end)

    it("refuses other magic, other schema and pushes without one", function()
        assert.equal("not a state log", (load("HGSTATE2" .. FIRST)).error)
        local other = batch(1, 5, fixture.record("B", "schema", "2")
            .. fixture.record("R", "", "5"))
        assert.match("schema 2", (load("HGSTATE1" .. other)).error)
        local none = batch(1, 5, fixture.record("R", "", "5"))
        assert.match("schema", (load("HGSTATE1" .. none)).error)
    end)

    it("is empty when the memory is too small", function()
        local loaded, values = load("HGSTATE1" .. FIRST, 20)
        assert.same({ from = "empty", revision = 0, error = "no memory" }, loaded)
        assert.same({}, values)
    end)

    it("is silent about a file that is not there", function()
        local function missing(err, code)
            return statelog.load({ path = "x", open = function() return nil, err, code end })
        end
        assert.same({ from = "empty", revision = 0 }, missing("x: No such file", 2))
        assert.equal("x: Permission denied", missing("x: Permission denied", 13).error)
    end)
end)
