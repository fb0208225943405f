--- A worker's view of the pushed state: objects are decoded when they are first used and again
-- when their pointer changed. The shared revision tells that a pointer may have changed; nothing
-- else does. It stands in a dict; a word that all workers share (cells.lua) tells that it changed,
-- for each request asks twice and a read of the dict takes its lock.
local pcall, pairs, type = pcall, pairs, type

local _M = {}
local mt = { __index = _M }

local collection = {}
local collection_mt = { __index = collection }

local WORD = 2 ^ 32

--- @tparam table o dict, meta: the shared dicts; cells: see cells.lua; decode: function(string)
--   value or nil, err; report: see report.lua; yield: function() that lets others run
function _M.new(o)
    return setmetatable({
        dict = o.dict, meta = o.meta, cells = o.cells, decode = o.decode, report = o.report,
        yield = o.yield, seen = 0, swept = 0, collections = {},
    }, mt)
end

--- Open one kind of objects.
-- @tparam string kind "host", "upstream", …
-- @tparam function build build(decoded, name, previous) gives the value that the worker keeps, or
--   nil, err; previous is the value that it replaces, or nil
-- @treturn table with get(name, revision)
function _M:kind(kind, build)
    local c = setmetatable({
        state = self, prefix = kind .. "/", build = build, entries = {},
    }, collection_mt)
    self.collections[#self.collections + 1] = c
    return c
end

--- The committed revision; 0 before the first push.
function _M:revision()
    if self.cells:revision() == self.word then
        return self.seen
    end
    return self:refresh()
end

--- The committed revision, by the dict, and tell the other workers of it if nobody has. Whoever
-- commits must call this; and whoever answers for all workers, for the one that committed may have
-- been killed before it told.
function _M:refresh()
    local cells = self.cells
    -- The word first: what is committed after this line changes it again.
    local word = cells:revision()
    local revision = self.meta:get("revision") or 0
    if word ~= revision % WORD then
        cells:tell_revision(revision)
        word = cells:revision()
    end
    self.word = word
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

local function load(self, name, revision, entry)
    local state, pointer = self.state, self.prefix .. name
    local hash = state.dict:get(pointer)
    if not hash then
        self.entries[name] = nil
        state.report:fine(pointer)
        return nil
    end
    if entry and entry.hash == hash then
        entry.revision = revision
        return entry.value
    end
    local body, value, err
    body, hash = read_body(state.dict, pointer, hash)
    if not hash then
        self.entries[name] = nil
        return nil
    end
    if body then
        value, err = decode(self, body, name, entry and entry.value)
    else
        err = "its body is missing"
    end
    if value == nil then
        state.report:failed(pointer, err or "unusable")
        entry = entry or { broken = true }
        entry.revision = revision
        self.entries[name] = entry
        return entry.value, entry.broken
    end
    state.report:fine(pointer)
    self.entries[name] = { hash = hash, revision = revision, value = value }
    return value
end

--- Get an object as it is at a revision.
-- @tparam string name
-- @tparam number revision of state:revision(), read for this request or pick
-- @return[1] the value that build made
-- @return[2] nil, true when there is one that never could be used
-- @return[3] nil when there is none
function collection:get(name, revision)
    local entry = self.entries[name]
    if entry and entry.revision == revision then
        return entry.value, entry.broken
    end
    return load(self, name, revision, entry)
end

--- Get an object only if nothing has to be read for it.
-- @tparam string name
-- @tparam number revision as for get
-- @treturn any|nil the value; nil tells nothing: get knows
function collection:held(name, revision)
    local entry = self.entries[name]
    if entry and entry.revision == revision then
        return entry.value
    end
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
-- their balancing state on. Runs in a timer; does nothing when the revision did not change.
function _M:sweep()
    local revision = self:refresh()
    if revision == self.swept then
        return
    end
    self.swept = revision
    for _, c in pairs(self.collections) do
        local names = {}
        for name in pairs(c.entries) do
            names[#names + 1] = name
        end
        for i, name in ipairs(names) do
            if not self.dict:get(c.prefix .. name) then
                c.entries[name] = nil
                self.report:fine(c.prefix .. name)
            end
            if i % 1000 == 0 then
                self.yield()
            end
        end
    end
end

return _M
