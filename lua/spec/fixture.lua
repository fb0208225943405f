--- What specs need in place of nginx: shared dicts, a JSON decoder, records and a CRC.
local bit = require "bit"
local cjson = require "cjson.safe"
local ffi = require "ffi"

local cells = require "headgate.cells"
local handover = require "headgate.handover"

local _M = { decode = cjson.decode, encode = cjson.encode }

local dict = {}

--- A shared dict of limited size: each key costs its length and that of its value.
function _M.dict(limit)
    local d = setmetatable({}, { __index = dict })
    rawset(d, "values", {})
    rawset(d, "limit", limit or math.huge)
    return d
end

--- What is handed over in a request, as nginx would have it at one place in memory.
function _M.handover()
    return handover.new({ get_request = function() return ffi.cast("void *", 64) end })
end

--- What the workers of a new proxy share.
function _M.cells()
    return assert(cells.open({
        dict = _M.dict(), home = _M.dict(), now = os.time, random = math.random,
    }))
end

local function size(d)
    local n = 0
    for k, v in pairs(d.values) do
        n = n + #k + #tostring(v)
    end
    return n
end

function dict:get(key)
    return self.values[key]
end

function dict:safe_set(key, value)
    local before = self.values[key]
    self.values[key] = value
    if size(self) > self.limit then
        self.values[key] = before
        return nil, "no memory"
    end
    return true
end

function dict:safe_add(key, value)
    if self.values[key] ~= nil then
        return false, "exists"
    end
    return self:safe_set(key, value)
end

function dict:incr(key, by, init)
    if self.values[key] == nil and not init then
        return nil, "not found"
    end
    local value = (self.values[key] or init) + by
    self.values[key] = value
    return value
end

function dict:delete(key)
    self.values[key] = nil
end

function dict:lpush(key, value)
    self.lists = self.lists or {}
    self.lists[key] = self.lists[key] or {}
    table.insert(self.lists[key], 1, value)
end

function dict:rpop(key)
    return self.lists and self.lists[key] and table.remove(self.lists[key])
end

function dict.capacity() return 4096 end

function dict.free_space() return 1024 end

function dict:ttl(key)
    if self.values[key] == nil then
        return nil, "not found"
    end
    return 0
end

function dict:flush_all()
    self.values = {}
end

function dict.flush_expired() end

--- A report that remembers errors by pointer.
function _M.report()
    local r = { errors = {}, written = 0 }
    function r:failed(pointer, err) self.errors[pointer] = err end
    function r:fine(pointer) self.errors[pointer] = nil end
    function r:write() self.written = self.written + 1 end
    return r
end

function _M.u32(n)
    return string.char(math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256,
        math.floor(n / 256) % 256, n % 256)
end

function _M.record(op, key, value)
    return op .. string.char(math.floor(#key / 256), #key % 256) .. _M.u32(#value) .. key .. value
end

--- CRC-32 of IEEE 802.3.
function _M.crc32(s)
    local crc = bit.bnot(0)
    for i = 1, #s do
        crc = bit.bxor(crc, s:byte(i))
        for _ = 1, 8 do
            local low = bit.band(crc, 1)
            crc = bit.bxor(bit.rshift(crc, 1), low == 1 and 0xEDB88320 or 0)
        end
    end
    crc = bit.bnot(crc)
    return crc < 0 and crc + 4294967296 or crc
end

--- A hash of the right form.
function _M.hash(n)
    return ("%032x"):format(n)
end

return _M
