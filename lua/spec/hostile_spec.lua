-- Damaged and hostile input for the parsers of Lua: whatever comes, they answer, and never with an
-- error of Lua or half of something.
package.path = "./?.lua;./spec/?.lua;" .. package.path

local apply = require "headgate.apply"
local fixture = require "fixture"
local record = require "headgate.record"
local rewrite = require "headgate.rewrite"
local statelog = require "headgate.statelog"

-- A fixed seed: a failure must be one tomorrow, too. LUA_SEED tries others.
math.randomseed(tonumber(os.getenv("LUA_SEED") or 1))
local ROUNDS = tonumber(os.getenv("LUA_ROUNDS") or 3000)

local random = math.random

local function bytes(n)
    local t = {}
    for i = 1, n do
        t[i] = string.char(random(0, 255))
    end
    return table.concat(t)
end

local KEYS = { "host/a", "sni/a", "cert/x/y", "schema", "", "evil/x", fixture.hash(1),
    fixture.hash(2), "host/;}{\"\\$", ("k"):rep(300) }
local VALUES = { "", "1", "7", fixture.hash(1), fixture.hash(2), "{}", "not json",
    ("v"):rep(2000) }

local function records(n)
    local t = {}
    for i = 1, n do
        local ops = "BPRDX"
        local at = random(#ops)
        t[i] = fixture.record(ops:sub(at, at), KEYS[random(#KEYS)], VALUES[random(#VALUES)])
    end
    return table.concat(t)
end

--- Change, cut, double or insert some bytes.
local function damage(s)
    local at = random(0, #s)
    local kind = random(5)
    if kind == 1 then
        return s:sub(1, at)
    elseif kind == 2 then
        return s:sub(1, at) .. bytes(random(4)) .. s:sub(at + 1)
    elseif kind == 3 then
        return s:sub(1, at) .. s:sub(at + random(0, 8))
    elseif kind == 4 then
        return s:sub(1, at) .. bytes(1) .. s:sub(at + 2)
    end
    return s
end

local function batch(payload, last, revision)
    local head = fixture.u32(last and 1 or 0) .. fixture.u32(0) .. fixture.u32(revision)
        .. fixture.u32(#payload)
    return "HGB1" .. head .. fixture.u32(fixture.crc32(head .. payload)) .. payload
end

local function file(text)
    local at = 1
    return {
        read = function(_, n)
            if at > #text then
                return nil
            end
            local part = text:sub(at, at + n - 1)
            at = at + n
            return part
        end,
        close = function() end,
    }
end

describe("hostile input", function()
    it("is a record that reads back as it was, or none", function()
        for _ = 1, ROUNDS do
            local s = random(2) == 1 and bytes(random(0, 40)) or damage(records(1))
            local op, key, value, next_at = record.parse(s, 1)
            if op then
                assert.equal(s:sub(1, next_at - 1), fixture.record(op, key, value))
            else
                assert.equal("string", type(key))
            end
        end
    end)

    it("never moves the position of a record behind the end", function()
        for _ = 1, ROUNDS do
            local s = damage(records(random(5)))
            local at = 1
            while at <= #s do
                local op, _, _, next_at = record.parse(s, at)
                if not op then
                    break
                end
                assert.is_true(next_at > at and next_at <= #s + 1)
                at = next_at
            end
        end
    end)

    it("changes the dicts by whole records of known kinds alone", function()
        for _ = 1, ROUNDS do
            local dict, meta = fixture.dict(random(2) == 1 and random(4000) or nil), fixture.dict()
            local step = apply.new({ dict = dict, meta = meta })
            local ok, kind = step:all(damage(records(random(8))))
            if not ok then
                assert.is_true(kind == "record" or kind == "memory" or kind == "schema")
                step:undo()
            end
            for key, value in pairs(dict.values) do
                local pointer = key:match("^(%l+)/")
                assert.is_true(pointer == "body" or pointer == "host" or pointer == "sni"
                    or pointer == "cert")
                if pointer ~= "body" then
                    assert.equal(32, #value)
                end
            end
            for key in pairs(meta.values) do
                assert.is_true(key == "revision" or key == "deletes")
            end
        end
    end)

    it("gives the pushes of a state log that are whole, in order", function()
        local schema = fixture.record("B", "schema", "1")
        for _ = 1, ROUNDS / 10 do
            local text, expected = "HGSTATE1", {}
            for revision = 1, random(4) do
                local h = fixture.hash(revision)
                text = text .. batch(schema .. fixture.record("B", h, "{}")
                    .. fixture.record("P", "host/" .. revision, h)
                    .. fixture.record("R", "", tostring(revision)), true, revision)
                expected[#text] = revision
            end
            local cut = random(0, #text)
            local want = 0
            for length, revision in pairs(expected) do
                if length <= cut and revision > want then
                    want = revision
                end
            end
            local dict, meta = fixture.dict(), fixture.dict()
            local got = statelog.load({
                path = "x", dict = dict, meta = meta, crc32 = fixture.crc32,
                open = function() return file(text:sub(1, cut)) end,
            })
            assert.equal(want, got.revision)
            assert.equal(want > 0 and "log" or "empty", got.from)
        end
    end)

    it("never makes a damaged state log an error of Lua", function()
        local schema = fixture.record("B", "schema", "1")
        for _ = 1, ROUNDS / 10 do
            local text = "HGSTATE1"
            for revision = 1, random(3) do
                text = text .. batch((random(4) > 1 and schema or "") .. records(random(6)),
                    random(4) > 1, revision)
            end
            text = damage(damage(text))
            local got = statelog.load({
                path = "x", dict = fixture.dict(), meta = fixture.dict(), crc32 = fixture.crc32,
                open = function() return file(text) end,
            })
            assert.is_true(got.from == "log" or got.from == "empty")
            assert.equal("number", type(got.revision))
        end
    end)

    it("rewrites to a path and a query, whatever was captured", function()
        for _ = 1, ROUNDS do
            local parts, captures = {}, {}
            for i = 1, random(5) do
                parts[i] = random(2) == 1 and bytes(random(8)) or random(9)
            end
            for i = 1, random(0, 9) do
                captures[i] = random(3) > 1 and bytes(random(8))
            end
            local path = rewrite.build(parts, captures, function(s)
                return (s:gsub(".", function(c) return ("%%%02X"):format(c:byte()) end))
            end)
            assert.equal("/", path:sub(1, 1))
        end
    end)
end)
