--- Loads the state log into empty dicts, when nginx starts.
-- A file is "HGSTATE1" and batches: "HGB1" flags:u32 revision:u64 length:u32 crc:u32 payload.
-- Pushes whose last batch (flags 1) is whole count; reading stops at the first byte that does not
-- fit.
local apply = require "headgate.apply"
local record = require "headgate.record"
local schema = require "headgate.schema"

local sub = string.sub
local u32 = record.u32

local _M = { MAGIC = "HGSTATE1", BATCH_MAGIC = "HGB1" }

local HEADER_BYTES = 24
local LAST = 1
-- One record of 1 MiB, its header and the longest key.
local MAX_PAYLOAD_BYTES = 1048576 + 7 + 65535

--- Read one batch.
-- @treturn[1] table payload and last
-- @treturn[2] nil at the end of the file
-- @treturn[2] string why reading stopped within a batch; nil at a clean end
local function read_batch(file, crc32)
    local header = file:read(HEADER_BYTES)
    if not header then
        return nil
    end
    if #header < HEADER_BYTES or sub(header, 1, 4) ~= _M.BATCH_MAGIC then
        return nil, "a batch header is damaged"
    end
    local length = u32(header, 17)
    if length > MAX_PAYLOAD_BYTES then
        return nil, "a batch is too long"
    end
    local payload = length == 0 and "" or file:read(length)
    if not payload or #payload < length then
        return nil, "the last batch is cut short"
    end
    if crc32(sub(header, 5, 20) .. payload) ~= u32(header, 21) then
        return nil, "a checksum is wrong"
    end
    return { payload = payload, last = u32(header, 5) % 2 == LAST }
end

local function starts_with_schema(payload)
    local op, key, value = record.parse(payload, 1)
    if op ~= record.BODY or key ~= record.SCHEMA_KEY then
        return nil, "a push does not start with its schema"
    end
    if value ~= tostring(schema.NUMBER) then
        return nil, "schema " .. value .. ", this Lua code reads schema " .. schema.NUMBER
    end
    return true
end

local function apply_push(dicts, batches)
    local ok, err = starts_with_schema(batches[1])
    if not ok then
        return nil, err
    end
    local step = apply.new({ dict = dicts.dict, meta = dicts.meta })
    for _, payload in ipairs(batches) do
        local applied, kind, why = step:all(payload)
        if not applied then
            step:undo()
            return nil, kind == "memory" and "no memory" or why
        end
    end
    if not step.committed then
        return nil, "a push has no commit"
    end
    return true
end

local function read_all(file, dicts, crc32)
    local pushes, batches = 0, {}
    while true do
        local batch, err = read_batch(file, crc32)
        if not batch then
            if not err and #batches > 0 then
                err = "the last push is not complete"
            end
            return pushes, err
        end
        batches[#batches + 1] = batch.payload
        if batch.last then
            local ok, why = apply_push(dicts, batches)
            if not ok then
                return pushes, why
            end
            pushes, batches = pushes + 1, {}
        end
    end
end

--- Load a state log.
-- @tparam table o path: string or nil, dict and meta: the dicts, open: io.open, crc32: function
-- @treturn table from ("log" or "empty"), revision, error (string or nil)
function _M.load(o)
    if not o.path then
        return { from = "empty", revision = 0 }
    end
    local file, open_err, code = o.open(o.path, "rb")
    if not file then
        -- 2 is ENOENT: the first start.
        return { from = "empty", revision = 0, error = code ~= 2 and open_err or nil }
    end
    local pushes, err = 0, "not a state log"
    if file:read(#_M.MAGIC) == _M.MAGIC then
        pushes, err = read_all(file, o, o.crc32)
    end
    file:close()
    if pushes == 0 then
        -- A first push may have failed half-way: an empty state is better than a part of one.
        o.dict:flush_all()
        o.dict:flush_expired()
        return { from = "empty", revision = 0, error = err }
    end
    return { from = "log", revision = o.meta:get("revision"), error = err }
end

return _M
