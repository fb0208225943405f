--- Applies records to the shared dicts, in the order in which a push must have them:
-- bodies, pointers, the commit, deletes, drops. Used for pushes and for the state log.
local record = require "headgate.record"
local schema = require "headgate.schema"

local find = string.find
local tonumber = tonumber

local _M = {}
local mt = { __index = _M }

local POINTER = "^%l+/"
local KINDS = { host = true, sni = true, upstream = true, cert = true, setting = true }
local HASH = "^" .. ("%x"):rep(32) .. "$"
local DIGITS = "^%d+$"

--- Start applying.
-- @tparam table o dict: state, meta: the small dict, revision: the number to commit (nil: whatever
--   the commit says), committed: true when the commit came in an earlier part
-- @treturn table
function _M.new(o)
    return setmetatable({
        dict = o.dict,
        meta = o.meta,
        revision = o.revision,
        committed = o.committed or false,
        added = {},
        pointed = false,
    }, mt)
end

local function is_pointer(key)
    local _, slash = find(key, POINTER)
    return slash ~= nil and KINDS[key:sub(1, slash - 1)] == true
end

local steps = {}

steps[record.BODY] = function(self, key, value)
    if key == record.SCHEMA_KEY then
        if value ~= tostring(schema.NUMBER) then
            return nil, "schema", "schema " .. value .. " is not ours"
        end
        return true
    end
    if self.committed or not find(key, HASH) then
        return nil, "record", "a body after the commit, or one whose key is no hash"
    end
    local ok, err = self.dict:safe_add("body/" .. key, value)
    if ok then
        self.added[#self.added + 1] = key
        return true
    end
    if err == "exists" then
        return true
    end
    return nil, "memory", err
end

steps[record.POINTER] = function(self, key, value)
    if self.committed or not is_pointer(key) or not find(value, HASH) then
        return nil, "record", "a pointer after the commit, of an unknown kind, or to no hash"
    end
    -- ttl tells that the key is there without copying the body.
    if not self.dict:ttl("body/" .. value) then
        return nil, "record", "pointer " .. key .. " to a body that was not sent"
    end
    local ok, err = self.dict:safe_set(key, value)
    if not ok then
        return nil, "memory", err
    end
    self.pointed = true
    return true
end

steps[record.REVISION] = function(self, _, value)
    local revision = find(value, DIGITS) and tonumber(value)
    if not revision or self.committed or (self.revision and revision ~= self.revision) then
        return nil, "record", "a commit of another revision, or a second one"
    end
    local ok, err = self.meta:safe_set("revision", revision)
    if not ok then
        return nil, "memory", err
    end
    self.revision = revision
    self.committed = true
    return true
end

steps[record.DELETE] = function(self, key)
    if not self.committed or not is_pointer(key) then
        return nil, "record", "a delete before the commit, or of an unknown kind"
    end
    self.dict:delete(key)
    self.meta:incr("deletes", 1, 0) -- workers then look for what they hold and is gone (state.lua)
    return true
end

steps[record.DROP] = function(self, key)
    if not self.committed or not find(key, HASH) then
        return nil, "record", "a drop before the commit, or of no hash"
    end
    self.dict:delete("body/" .. key)
    return true
end

--- Apply one record.
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string kind of the failure: "record", "memory" or "schema"
-- @treturn[2] string what is wrong, for people
function _M:record(op, key, value)
    return steps[op](self, key, value)
end

--- Apply every record of a string.
-- @tparam string records
-- @treturn[1] boolean true
-- @treturn[2] nil
-- @treturn[2] string kind of the failure
-- @treturn[2] string what is wrong
function _M:all(records)
    local at = 1
    while at <= #records do
        local op, key, value, next_at = record.parse(records, at)
        if not op then
            return nil, "record", key
        end
        local ok, kind, err = self:record(op, key, value)
        if not ok then
            return nil, kind, err
        end
        at = next_at
    end
    return true
end

--- Take back the bodies that were added: the push failed before it set a pointer, so nobody can
-- refer to them.
function _M:undo()
    if self.pointed or self.committed then
        return
    end
    for _, key in ipairs(self.added) do
        self.dict:delete("body/" .. key)
    end
    self.added = {}
end

return _M
