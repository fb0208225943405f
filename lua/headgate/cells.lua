--- Numbers that the workers of a proxy share: a page of memory that the master maps before it
-- forks its workers (a read costs 1 ns, one of a shared dict 26). It outlives reloads as the dict
-- does that holds its address, so that workers of an old load, which finish their requests, count
-- on.
--
-- A cell is a number for each worker; only the worker itself writes its part, as what it has now,
-- so that nothing can drift. Parts of a worker that died are cleared by the one that follows it.
-- Cells belong to keys; one that nobody renews for ten minutes is given to another key.
local ffi = require "ffi"

local C, cast, tonumber = ffi.C, ffi.cast, tonumber

local _M = {}
local mt = { __index = _M }

pcall(ffi.cdef, [[
void *mmap(void *addr, size_t length, int prot, int flags, int fd, long offset);
]])

-- sys/mman.h of Linux.
local PROT_READ_WRITE, MAP_SHARED_ANONYMOUS = 3, 0x21
-- Workers of all loads that still run: a machine may have 64 of each, and some old loads.
local SLOTS = 256
local CELLS = 32768
-- Names this layout: workers with other Lua files may have another one.
local PAGE = "page/2/256/32768"
-- Words of the head.
local EVENTS, USED_SLOTS, STAMP = 0, 1, 2
local HEAD_WORDS = 16
local WORD = 2 ^ 32
local BYTES = 4 * (HEAD_WORDS + CELLS + CELLS * SLOTS)
local KEEP_SECONDS = 600
-- A cell waits longer than its key, which others may just have read.
local REST_SECONDS = 60
local PROBES = 64
local TAKE_OVER_SECONDS = 10

local function map()
    local page = C.mmap(nil, BYTES, PROT_READ_WRITE, MAP_SHARED_ANONYMOUS, -1, 0)
    local address = tonumber(cast("intptr_t", page))
    if address == -1 then
        return nil, "mmap of " .. BYTES .. " bytes: errno " .. ffi.errno()
    end
    return address
end

--- Open the page, in the master. Pages of memory are only used as they are written: 1 KiB a cell.
-- @tparam table o dict: shared dict of the peers, which may become full, and then forgets; home:
--   one that does not, for the address of the page and who has which slot; now: function() seconds
--   of a clock that never jumps; random: as math.random
-- @treturn[1] table
-- @treturn[2] nil
-- @treturn[2] string error
function _M.open(o)
    local address = o.home:get(PAGE)
    if not address then
        local ok, err
        address, err = map()
        if not address then
            return nil, err
        end
        ok, err = o.home:safe_set(PAGE, address)
        if not ok then
            return nil, err
        end
    end
    o.home:safe_add("cells", 0)
    local words = cast("uint32_t *", cast("intptr_t", address))
    return setmetatable({
        dict = o.dict, home = o.home, now = o.now, random = o.random,
        head = words, seen = words + HEAD_WORDS,
        counts = cast("int32_t *", words + HEAD_WORDS + CELLS), slot = nil,
    }, mt)
end

local function clear(self, slot)
    local cells = math.min(self.home:get("cells") or 0, CELLS)
    for n = 0, cells - 1 do
        local at = n * SLOTS + slot
        if self.counts[at] ~= 0 then
            self.counts[at] = 0
        end
    end
end

--- Take a slot of a process that is gone; one of those who want it gets it.
local function take_over(self, slot, owner, pid)
    if not self.home:safe_add("slot/" .. slot .. "/" .. owner, pid, TAKE_OVER_SECONDS) then
        return false
    end
    clear(self, slot)
    return true
end

--- In a worker: take a slot, and clear those of workers that died.
-- @tparam number pid of this worker
-- @tparam function alive function(pid) tells whether there is such a worker
-- @treturn boolean false when all are taken: this worker then counts for itself only
function _M:claim(pid, alive)
    self:reap(pid, alive)
    for slot = 0, SLOTS - 1 do
        if self.home:safe_add("slot/" .. slot, pid) then
            self.slot = slot
            if slot >= self.head[USED_SLOTS] then
                self.head[USED_SLOTS] = slot + 1
            end
            return true
        end
    end
    return false
end

--- Clear and give back the slots of workers that died.
function _M:reap(pid, alive)
    for slot = 0, SLOTS - 1 do
        local owner = self.home:get("slot/" .. slot)
        if owner and (owner == pid and self.slot ~= slot or not alive(owner))
            and take_over(self, slot, owner, pid) then
            self.home:delete("slot/" .. slot)
        end
    end
end

--- Set this worker's part of a cell.
-- @tparam number cell of find()
-- @tparam number count
function _M:set(cell, count)
    local slot = self.slot
    if slot then
        self.counts[cell * SLOTS + slot] = count
    end
end

--- The sum of all workers.
function _M:sum(cell)
    local counts, from, sum = self.counts, cell * SLOTS, 0
    for i = from, from + self.head[USED_SLOTS] - 1 do
        sum = sum + counts[i]
    end
    return sum
end

--- Make what this worker wrote visible before it reads what others write: without it two workers
-- that add at once may each miss the other. The lock of a dict is the only barrier that Lua has.
function _M:fence()
    return self.home:get("cells")
end

--- A cell that no key has: a new one, or one that was not renewed for long.
local function free_cell(self, now)
    local next_cell = (self.home:get("cells") or 0) < CELLS and self.home:incr("cells", 1)
    if next_cell and next_cell <= CELLS then
        return next_cell - 1
    end
    local start = self.random(CELLS)
    for i = 0, PROBES - 1 do
        local cell = (start + i) % CELLS
        if self.seen[cell] + KEEP_SECONDS + REST_SECONDS < now and self:sum(cell) == 0
            and self.dict:safe_add("taken/" .. cell, true, TAKE_OVER_SECONDS) then
            return cell
        end
    end
end

--- Find the cell of a key, or give it one. Call it again within ten minutes to keep it.
-- @tparam string key
-- @treturn number|nil nil when no cell is free
function _M:find(key)
    local name, now = "cell/" .. key, math.floor(self.now())
    local cell = self.dict:get(name)
    if cell then
        self.seen[cell] = now
        self.dict:expire(name, KEEP_SECONDS)
        return cell
    end
    if not self.slot then
        return nil
    end
    cell = free_cell(self, now)
    if not cell then
        return nil
    end
    self.seen[cell] = now
    if self.dict:safe_add(name, cell, KEEP_SECONDS) then
        return cell
    end
    -- Another worker was faster, or the dict is full.
    self.seen[cell] = 0
    return self.dict:get(name)
end

--- How many events there were (see ejections.lua).
function _M:events()
    return self.head[EVENTS]
end

function _M:tell_events(n)
    self.head[EVENTS] = n
end

--- The low 32 bits of the stamp, as far as it was told (see state.lua).
function _M:stamp()
    return self.head[STAMP]
end

--- @tparam number n a stamp; its low 32 bits are kept
function _M:tell_stamp(n)
    self.head[STAMP] = n % WORD
end

return _M
