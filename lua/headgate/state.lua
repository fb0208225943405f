--- A worker's view of the pushed state: objects are decoded when they are first used and again
-- when their pointer changed. That a pointer may have changed tells the stamp, and nothing else:
-- the shared revision and the number of deletes, which follow the commit and may come in later
-- parts of the push. Both stand in a dict; a word that all workers share (cells.lua) tells that the
-- stamp changed, for each request asks twice and a read of the dict takes its lock.
local clear = require "table.clear"

local pcall, pairs, tonumber, type = pcall, pairs, tonumber, type
local sub = string.sub

local _M = {}
local mt = { __index = _M }

local collection = {}
local collection_mt = { __index = collection }

local WORD = 2 ^ 32
-- Of a hash, in hexadecimal: as many as a number of Lua holds.
local DIGITS = 13

--- @tparam table o dict, meta: the shared dicts; cells: see cells.lua; decode: function(string)
--   value or nil, err; report: see report.lua; yield: function() that lets others run
function _M.new(o)
    return setmetatable({
        dict = o.dict, meta = o.meta, cells = o.cells, decode = o.decode, report = o.report,
        yield = o.yield, seen = 0, stamped = 0, swept = 0, collections = {}, built = 0,
    }, mt)
end

--- Open one kind of objects.
-- @tparam string kind "host", "upstream", …
-- @tparam function build build(decoded, name, previous) gives the value that the worker keeps, or
--   nil, err; previous is the value that it replaces, or nil
-- @treturn table with get(name, stamp)
function _M:kind(kind, build)
    -- values and hashes, by name, are what was decoded last and from which body; false is the value
    -- of what never could be used. Those that are known to be so at the stamp stand in fresh,
    -- too. A request looks there alone: a table for each object would be two more reads of memory
    -- that is in no cache, where there are many.
    local c = setmetatable({
        state = self, prefix = kind .. "/", build = build, values = {}, hashes = {}, fresh = {},
        stamp = 0,
    }, collection_mt)
    self.collections[#self.collections + 1] = c
    return c
end

--- How many objects this worker decoded so far.
-- @treturn number
function _M:decoded()
    return self.built
end

--- A number that grows with each commit and each delete; 0 before the first push.
function _M:stamp()
    if self.cells:stamp() == self.word then
        return self.stamped
    end
    self:refresh()
    return self.stamped
end

--- The committed revision; 0 before the first push.
function _M:committed()
    self:stamp()
    return self.seen
end

local function read_stamp(meta)
    local revision = meta:get("revision") or 0
    return revision + (meta:get("deletes") or 0), revision
end

--- The committed revision, by the dict, and tell the other workers of the stamp if nobody has.
-- Whoever commits or deletes must call this; and whoever answers for all workers, for the one that
-- did may have been killed before it told.
function _M:refresh()
    local cells, meta = self.cells, self.meta
    local stamp = read_stamp(meta)
    local told, revision
    repeat
        if cells:stamp() ~= stamp % WORD then
            cells:tell_stamp(stamp)
        end
        -- Whoever came between has told a later one, which was just told over.
        told = stamp
        stamp, revision = read_stamp(meta)
    until stamp == told
    self.stamped, self.word = stamp, stamp % WORD
    if revision ~= self.seen then
        self.seen = revision
        self.report.revision = revision
        self.report:write()
    end
    return revision
end

--- Read the body that a pointer names. A push may drop the old body between the two reads; the
-- pointer then has a new value.
local function read_body(dict, pointer, hash)
    for _ = 1, 3 do
        local body = dict:get("body/" .. hash)
        if body then
            return body, hash
        end
        hash = dict:get(pointer)
        if not hash then
            return nil, nil
        end
    end
    return nil, hash
end

local function decode(self, body, name, previous)
    self.state.built = self.state.built + 1
    local decoded, err = self.state.decode(body)
    if type(decoded) ~= "table" then
        return nil, err or "not an object"
    end
    local ok, value, build_err = pcall(self.build, decoded, name, previous)
    if not ok then
        return nil, value
    end
    return value, build_err
end

--- A hash as a number, where it is one: 30,000 strings are 2 MiB of a worker. 52 bits of it tell
-- the bodies of one object apart.
local function digest(hash)
    return tonumber(sub(hash, 1, DIGITS), 16) or hash
end

--- Keep what an object is at the stamp.
-- @param value false when it never could be used
local function keep(self, name, value)
    self.values[name], self.fresh[name] = value, value
    if value then
        return value
    end
    return nil, true
end

local function load(self, name, stamp)
    if self.stamp ~= stamp then
        clear(self.fresh)
        self.stamp = stamp
    end
    local state, pointer = self.state, self.prefix .. name
    local hash = state.dict:get(pointer)
    if not hash then
        self:forget(name)
        state.report:fine(pointer)
        return nil
    end
    if self.hashes[name] == digest(hash) then
        return keep(self, name, self.values[name])
    end
    local body, value, err
    local before = self.values[name] or nil
    body, hash = read_body(state.dict, pointer, hash)
    if not hash then
        self:forget(name)
        return nil
    end
    if body then
        value, err = decode(self, body, name, before)
    else
        err = "its body is missing"
    end
    if value == nil then
        state.report:failed(pointer, err or "unusable")
        return keep(self, name, before or false)
    end
    state.report:fine(pointer)
    self.hashes[name] = digest(hash)
    return keep(self, name, value)
end

--- Get an object as it is now.
-- @tparam string name
-- @tparam number stamp of state:stamp(), read for this request or pick
-- @return[1] the value that build made
-- @return[2] nil, true when there is one that never could be used
-- @return[3] nil when there is none
function collection:get(name, stamp)
    if self.stamp == stamp then
        local value = self.fresh[name]
        if value then
            return value
        elseif value == false then
            return nil, true
        end
    end
    return load(self, name, stamp)
end

--- Get an object only if nothing has to be read for it.
-- @tparam string name
-- @tparam number stamp as for get
-- @treturn any|nil the value; nil tells nothing: get knows
function collection:held(name, stamp)
    return self.stamp == stamp and self.fresh[name] or nil
end

--- Let go of an object until it is asked for again.
-- @tparam string name
function collection:forget(name)
    self.values[name], self.hashes[name], self.fresh[name] = nil, nil, nil
end

--- Read an object anew, without keeping it.
-- @tparam string name
-- @treturn[1] table as it was pushed
-- @treturn[2] nil when there is none that can be decoded
function collection:read(name)
    local dict, pointer = self.state.dict, self.prefix .. name
    local hash = dict:get(pointer)
    local body = hash and read_body(dict, pointer, hash)
    local decoded = body and self.state.decode(body)
    return type(decoded) == "table" and decoded or nil
end

--- Let go of objects that are no longer pushed. Changed ones stay until they are used: they hand
-- their balancing state on. Runs in a timer; looks at nothing unless something was deleted: to look
-- for 50,000 objects makes 5 MiB of garbage.
-- @treturn boolean it looked
function _M:sweep()
    self:refresh()
    local deletes = self.meta:get("deletes") or 0
    if deletes == self.swept then
        return false
    end
    self.swept = deletes
    for _, c in pairs(self.collections) do
        local names = {}
        for name in pairs(c.values) do
            names[#names + 1] = name
        end
        for i, name in ipairs(names) do
            if not self.dict:get(c.prefix .. name) then
                c:forget(name)
                self.report:fine(c.prefix .. name)
            end
            if i % 1000 == 0 then
                self.yield()
            end
        end
    end
    return true
end

return _M
