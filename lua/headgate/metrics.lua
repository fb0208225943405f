--- Counts requests. Each worker counts in tables of its own (log phase), and adds them once a
-- second to numbers in a shared dict, which outlive it: a counter never goes backwards, and a
-- worker that is killed takes at most what it counted since it last did so. What clients choose
-- never makes a series: hosts are those of the routes, methods are of a list, statuses are bounded
-- per route.
--
-- In the dict: next (the highest id), id/<label> and label/<id>; v/<id> (all numbers of a label, of
-- one size, so that nginx writes them in place), gone/<id> (since when it has no route); lock (who
-- adds); w/<number> and workers (who counts), dropped, and free (ids to use again). One value for a
-- label, and not one for each number: to tell of 10,000 hosts would make 300,000 strings, and to
-- make room for so many LuaJIT stops for 30 to 60 ms.
local ffi = require "ffi"
local new_table = require "table.new"

local find, format, match, tonumber = string.find, string.format, string.match, tonumber
local ipairs, pairs = ipairs, pairs

local _M = {}
local mt = { __index = _M }

--- Upper bounds of the histograms' buckets, in seconds; one more holds the rest.
_M.BOUNDS = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10 }
--- Methods that are told apart, by number.
_M.METHODS = {
    "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "OTHER",
}
-- The slots of a route.
local BUCKETS = #_M.BOUNDS + 1
local RECEIVED, SENT, DURATION = 1, 2, 3
local UPSTREAM = DURATION + BUCKETS + 1
local SLOTS = UPSTREAM + BUCKETS
-- Of an entry: label, changed, codes.
local ENTRY_FIELDS = 3
_M.RECEIVED, _M.SENT, _M.DURATION, _M.UPSTREAM, _M.BUCKETS = RECEIVED, SENT, DURATION, UPSTREAM,
    BUCKETS
--- The slots of an upstream, by the names of peers:counters().
_M.OF_UPSTREAM = {
    retries = 1, refused = 2, ejections = 3, returns = 4, broken = 5, overflowed = 6,
}
--- The label of an upstream begins with this; that of a route with the name of a host.
_M.UPSTREAM_LABEL = "\1"

local TUNNEL = 101
local RADIX = 16 -- a code is status * RADIX + method
--- A peer may invent statuses: of so many codes of a route, each has its series; the rest has one.
_M.MAX_CODES = 64
local OTHER = _M.MAX_CODES

-- With its key it fits into 1 KiB of the dict. FORMAT changes with it.
ffi.cdef [[
typedef struct {
    double slot[28];
    double count[65];
    uint16_t code[65];
} headgate_series;
]]
local FORMAT = 1
local BYTES = ffi.sizeof("headgate_series")
local scratch = ffi.new("headgate_series")
local LOCK_SECONDS = 1
-- A timer waits a millisecond between two tries to lock; a worker on its way out only tries.
local TRIES = 20000
local ENTRIES_A_TURN = 100
local WORKER_SECONDS = 10
local SWEEP_SECONDS = 60
--- The series of a deleted route are told for so long, so that a scrape sees the last of them.
_M.GONE_SECONDS = 300
-- Entries that are not in use are let go now and then: there are as many as the busiest second had.
local RENEW_FLUSHES = 600

local method_number = {}
for i, name in ipairs(_M.METHODS) do
    method_number[name] = i
end
local OTHER_METHOD = #_M.METHODS

--- The number of the bucket of a time. Not a loop: LuaJIT compiles one that is left early badly.
local function bucket(t)
    if t <= 0.005 then return 1 end
    if t <= 0.01 then return 2 end
    if t <= 0.025 then return 3 end
    if t <= 0.05 then return 4 end
    if t <= 0.1 then return 5 end
    if t <= 0.25 then return 6 end
    if t <= 0.5 then return 7 end
    if t <= 1 then return 8 end
    if t <= 2.5 then return 9 end
    if t <= 5 then return 10 end
    if t <= 10 then return 11 end
    return 12
end
_M.bucket = bucket

--- The label of a route. No part of it can hold a line feed that came from an object: names of
-- hosts, Ingresses, Services and ports have none; one that had is cut.
-- @tparam string host
-- @tparam table|nil source {kind, namespace, name, service, port}; nil: the host alone
function _M.label(host, source)
    local function plain(s)
        return (tostring(s or ""):gsub("\n", " "))
    end
    if not source then
        return plain(host) .. "\n\n\n"
    end
    local ingress = source[3] and source[3] ~= "" and source[2] .. "/" .. source[3] or ""
    return format("%s\n%s\n%s\n%s", plain(host), plain(ingress), plain(source[4]),
        plain(source[5]))
end

--- The worker sets pid when it starts.
-- @tparam table o dict; get: reads variables of nginx; numbers: see variable.lua; handover: see
--   handover.lua; now: the time of day; age: function() seconds since the request at hand began;
--   yield; peers: see peers.lua, or nil; exists: function(label) tells whether its route or
--   upstream is still pushed
function _M.new(o)
    return setmetatable({
        dict = o.dict, get = o.get, whole = o.numbers.whole, seconds = o.numbers.seconds,
        filled = o.numbers.filled, handover = o.handover, now = o.now, age = o.age,
        yield = o.yield, peers = o.peers, exists = o.exists,
        entries = {}, idle = {}, changed = {}, count_changed = 0, spare = {},
        open = 0, flushes = 0, leaving = false,
    }, mt)
end

--- Make the keys that must be there however full the dict becomes. In the master.
function _M.prepare(dict)
    if dict:get("format") ~= FORMAT then
        dict:flush_all()
        dict:flush_expired()
        dict:safe_set("format", FORMAT)
    end
    for _, key in ipairs({ "next", "workers", "dropped" }) do
        dict:safe_add(key, 0)
    end
end

local function new_entry(slots)
    local e = new_table(slots, ENTRY_FIELDS)
    e.label, e.changed, e.codes = "", false, {}
    for i = 1, slots do
        e[i] = 0
    end
    return e
end

--- An entry for a route that has none: one that is not in use, or a new one. (An entry for each of
-- 10,000 hosts, for ever, took 6 MiB of a worker.)
local function entry_of(self, label)
    local idle = self.idle
    local n = #idle
    local e = idle[n]
    if e then
        idle[n] = nil
    else
        e = new_entry(SLOTS)
    end
    e.label = label
    self.entries[label] = e
    return e
end

--- An entry was added to the dict, and counts nothing any more.
local function let_go(self, e)
    self.entries[e.label] = nil
    if #e == SLOTS then
        self.idle[#self.idle + 1] = e
    end
end

local function mark(self, e)
    if not e.changed then
        e.changed = true
        local n = self.count_changed + 1
        self.count_changed = n
        self.changed[n] = e
    end
end

--- The time that the last peer took. Where several were tried, the variable has a list ("0.001,
-- 0.002 : 0.003").
local function last_time(self)
    local t = self.seconds("upstream_response_time")
    return t or tonumber(match(self.get("upstream_response_time") or "", "([%d.]+)%s*$") or "")
end

--- A request goes to a peer, for the first time: count it if it asked for another protocol.
function _M:opened()
    if self.filled("headgate_upgrade") then
        self.open = self.open + 1
    end
end

local function closed(self)
    if self.handover.upstream() and self.filled("headgate_upgrade") then
        self.open = self.open - 1
    end
end

--- A request ended (log phase).
-- @tparam number status
function _M:count(status)
    local get, whole = self.get, self.whole
    local label = self.handover.label() or ""
    local e = self.entries[label] or entry_of(self, label)
    mark(self, e)
    local codes = e.codes
    local code = status * RADIX + (method_number[get("request_method")] or OTHER_METHOD)
    codes[code] = (codes[code] or 0) + 1
    e[RECEIVED] = e[RECEIVED] + (whole("request_length") or 0)
    e[SENT] = e[SENT] + (whole("bytes_sent") or 0)
    if status ~= TUNNEL then
        -- The clock of the day may be put back, a counter must not go back with it.
        local t = math.max(0, self.age())
        local b = DURATION + bucket(t)
        e[DURATION], e[b] = e[DURATION] + t, e[b] + 1
        t = last_time(self)
        if t then
            b = UPSTREAM + bucket(t)
            e[UPSTREAM], e[b] = e[UPSTREAM] + t, e[b] + 1
        end
    end
    if self.open > 0 then
        closed(self)
    end
    if self.leaving then
        self:flush(function() end)
    end
end

-- From the worker to the dict

local function new_id(dict, label)
    local id = dict:rpop("free") or dict:incr("next", 1)
    if not id or not dict:safe_set("label/" .. id, label) then
        return nil
    end
    local ok, err = dict:safe_add("id/" .. label, id)
    if ok then
        return id
    end
    dict:delete("label/" .. id)
    dict:lpush("free", id)
    return err == "exists" and dict:get("id/" .. label) or nil
end

--- Read the numbers of a label.
-- @tparam cdata series headgate_series
-- @treturn boolean false when there are none: then they are 0
function _M.read(dict, id, series)
    local bytes = dict:get("v/" .. id)
    if bytes and #bytes == BYTES then
        ffi.copy(series, bytes, BYTES)
        return true
    end
    ffi.fill(series, BYTES)
    return false
end

local function add_code(series, code, n)
    for k = 0, OTHER - 1 do
        local have = series.code[k]
        if have == code or have == 0 then
            series.code[k] = code
            series.count[k] = series.count[k] + n
            return
        end
    end
    series.count[OTHER] = series.count[OTHER] + n
end

--- Add an entry to the dict; the worker holds the lock.
-- @treturn boolean false when it was lost, because the dict is full
local function add_entry(self, e)
    local dict = self.dict
    local id = dict:get("id/" .. e.label) or new_id(dict, e.label)
    if not id then
        return false
    end
    _M.read(dict, id, scratch)
    for i = 1, #e do
        scratch.slot[i - 1] = scratch.slot[i - 1] + e[i]
    end
    for code, n in pairs(e.codes) do
        if n > 0 then
            add_code(scratch, code, n)
        end
    end
    return (dict:safe_set("v/" .. id, ffi.string(scratch, BYTES)))
end

local function empty(e)
    e.changed = false
    for i = 1, #e do
        e[i] = 0
    end
    for code in pairs(e.codes) do
        e.codes[code] = 0
    end
end

--- Be the only worker that adds. A worker that is killed holds the lock for a second more.
local function lock(self, yield)
    for _ = 1, TRIES do
        local ok, err = self.dict:safe_add("lock", self.number, LOCK_SECONDS)
        if ok or err ~= "exists" then
            return ok
        end
        yield()
    end
end

local function unlock(self)
    if self.dict:get("lock") == self.number then
        self.dict:delete("lock")
    end
end

--- Add entries to the dict.
-- @treturn number how many were added
local function add_entries(self, list, from, to)
    for i = from, to do
        -- Whoever was stopped for too long has lost the lock.
        if self.dict:get("lock") ~= self.number then
            return i - from
        end
        if not add_entry(self, list[i]) then
            self.dict:incr("dropped", 1)
        end
        empty(list[i])
    end
    return to - from + 1
end

local function take_counters(self)
    self.peers:counters(function(id, counts)
        local label = _M.UPSTREAM_LABEL .. id
        local e = self.entries[label] or new_entry(0)
        e.label, self.entries[label] = label, e
        for name, slot in pairs(_M.OF_UPSTREAM) do
            e[slot] = (e[slot] or 0) + (counts[name] or 0)
        end
        mark(self, e)
    end)
end

local function tell_worker(self)
    local dict = self.dict
    local key = "w/" .. self.number
    -- One that is on its way out has no timer that could do it again.
    local ttl = not self.leaving and WORKER_SECONDS or 0
    if self.leaving and self.open == 0 then
        dict:delete(key)
    else
        dict:safe_set(key, (self.pid or 0) .. " " .. self.open, ttl)
    end
end

--- Add what was counted to the dict. What cannot be added now is kept for the next time.
-- @tparam function yield lets others run
function _M:flush(yield)
    self.number = self.number or self.dict:incr("workers", 1) or 0
    if self.peers then
        take_counters(self)
    end
    local list, n = self.changed, self.count_changed
    self.changed, self.spare, self.count_changed = self.spare, list, 0
    local i = 1
    while i <= n do
        if not lock(self, yield) then
            break
        end
        i = i + add_entries(self, list, i, math.min(i + ENTRIES_A_TURN - 1, n))
        unlock(self)
        if i <= n then
            yield()
        end
    end
    for k = 1, n do
        local e = list[k]
        if k >= i then
            e.changed = false
            mark(self, e)
        elseif not e.changed then
            let_go(self, e)
        end
        list[k] = nil
    end
    tell_worker(self)
    self.flushes = self.flushes + 1
    if self.flushes % RENEW_FLUSHES == 0 then
        self.idle = {}
    end
end

--- What each second brings. Runs in a timer.
-- @tparam boolean premature the worker is told to go: from now on each request is added at once
function _M:tick(premature)
    if premature then
        self.leaving = true
        return self:flush(function() end)
    end
    if self.flushing then
        return
    end
    self.flushing = true
    self:flush(self.yield)
    if self.dict:safe_add("sweeping", true, SWEEP_SECONDS) then
        self:sweep()
    end
    self.flushing = false
end

-- Series of routes that are gone

local function delete(dict, id, label)
    dict:delete("id/" .. label)
    dict:delete("v/" .. id)
    dict:delete("gone/" .. id)
    dict:delete("label/" .. id)
    dict:lpush("free", id)
end

--- Let go of the series whose route or upstream was deleted a while ago.
function _M:sweep()
    local dict, now = self.dict, self.now()
    for id = 1, dict:get("next") or 0 do
        local label = dict:get("label/" .. id)
        if label and label ~= "" and not self.exists(label) then
            local since = dict:get("gone/" .. id)
            if since and now - since >= _M.GONE_SECONDS then
                delete(dict, id, label)
            elseif not since and not dict:safe_set("gone/" .. id, now) then
                delete(dict, id, label)
            end
        elseif label then
            dict:delete("gone/" .. id)
        end
        if id % ENTRIES_A_TURN == 0 then
            self.yield()
        end
    end
end

-- For who renders them

--- The host of a route's label.
function _M.host_of(label)
    local feed = find(label, "\n", 1, true)
    return label:sub(1, feed - 1)
end

--- The upstream of an upstream's label; nil for that of a route.
function _M.upstream_of(label)
    if label:sub(1, #_M.UPSTREAM_LABEL) == _M.UPSTREAM_LABEL then
        return label:sub(#_M.UPSTREAM_LABEL + 1)
    end
end

--- Does a host, or one of its routes, have the label?
-- @tparam table host of router.build_host()
function _M.has_label(host, label)
    if _M.label(host.name) == label then
        return true
    end
    for _, route in ipairs(host) do
        if route.label == label then
            return true
        end
    end
    return false
end

--- The status and the method of the k-th code of a series.
-- @treturn number|string status
-- @treturn string method
function _M.decode(series, k)
    if k == OTHER then
        return "other", "OTHER"
    end
    local code = series.code[k]
    return math.floor(code / RADIX), _M.METHODS[code % RADIX] or "OTHER"
end

--- What the workers that live told.
-- @tparam table dict
-- @tparam function alive function(pid)
-- @treturn number workers
-- @treturn number requests for another protocol that are open
function _M.workers(dict, alive)
    local count, open = 0, 0
    local last = dict:get("workers") or 0
    local first = dict:get("first") or 1
    local leading = true
    for i = first, last do
        local pid, n = match(dict:get("w/" .. i) or "", "^(%d+) (%d+)$")
        if pid and alive(tonumber(pid)) then
            count, open, leading = count + 1, open + tonumber(n), false
        elseif pid then
            dict:delete("w/" .. i)
        end
        if leading then
            first = i
        end
    end
    dict:safe_set("first", first)
    return count, open
end

return _M
