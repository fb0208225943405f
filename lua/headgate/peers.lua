--- The life of peers: who is out, who is new, how much is in flight. A peer is one table for an
-- upstream and an address, kept over pushes: {address, weight, blocked, share} for the algorithms
-- (docs/design/0004), the other fields for this module. A life holds the peers of an upstream.
local admission = require "headgate.admission"
local budget = require "headgate.budget"
local ejections = require "headgate.ejections"

local new_table = require "table.new"
local byte, find, gmatch, sub = string.byte, string.find, string.gmatch, string.sub
local ceil, max, min = math.ceil, math.max, math.min
local ipairs, pairs, tonumber = ipairs, pairs, tonumber

local _M = {}
local mt = { __index = _M }

-- Ejection of gateway/model.
local DEFAULT_FAILURES, DEFAULT_BASE_MS, DEFAULT_MAX_MS = 3, 5000, 300000
-- From here on nginx may have made the answer itself; lower statuses are answers of peers.
local OWN_STATUS = 500

local life = {}

-- 10,000 hosts bring 50,000 peers, and nearly nothing ever happens to most: what a table has only
-- then stands here once, as long as it is so. spec/memory_spec.lua tells what they may take.
local NONE = {}
local peer_mt = { __index = {
    mine = 0, weight = 1, gone = false, down = false, full = false, failing = false,
} }
-- Where nothing is limited, all share one that lets in whoever comes.
local OPEN = admission.new(nil, {})
life.ready, life.draining = NONE, NONE
life.out, life.slow, life.full, life.admission = NONE, NONE, NONE, OPEN
life.failing, life.counted, life.open, life.alarm = 0, 0, 0, OWN_STATUS
life.panic, life.limited, life.bounded, life.placed = false, false, false, false
life.tracked, life.busy, life.attentive, life.policies = false, false, false, false
-- No retry was made yet, and the default holds: nothing but requests is counted.
life.budget = false

-- nginx hands on what is no HTTP as an answer of HTTP/0.9, which it logs with this status.
local NO_HTTP = 9
-- Slow start begins with this share: a peer without any requests would never show that it is well.
local LEAST_SHARE = 0.1
local SHARE_SECONDS = 0.05
-- Cells belong to those who ask for them at least every ten minutes (cells.lua).
local RENEW_SECONDS = 60
-- A worker may have 10,000 upstreams, each of which takes locks of dicts: others run in between.
local RENEWED_A_TURN = 500
-- Algorithms that ask for the requests in flight.
local LOAD = { least_conn = true, p2c = true, ewma = true }
local PLUS, REFUSED = byte("+"), byte("-")
--- The mark of a request that the upstream let in and no peer has yet.
_M.ADMITTED = "+"
--- What is put behind the mark when a retry was refused: the failure is counted already.
_M.REFUSED = "-"
--- What stands before it when the last try had timed out. nginx.conf looks for both.
_M.TIMED_OUT = "t"
--- nginx's status of what is no HTTP/1, which it takes for HTTP/0.9.
_M.NO_HTTP = NO_HTTP

--- @tparam table o dict: shared; cells: see cells.lua; now: function() seconds of a clock that
--   never jumps; random: as math.random; log: function(...); semaphore: ngx.semaphore
-- @treturn table
function _M.new(o)
    local self = {
        dict = o.dict, cells = o.cells, now = o.now, random = o.random, log = o.log,
        semaphore = o.semaphore, any_counted = false, lives = {}, renewed = o.now(), told = {},
        ejections = ejections.new({
            dict = o.dict, cells = o.cells, now = o.now, random = o.random,
        }),
    }
    -- What all lives of this worker have, too, stands once: its registry.
    local class = { registry = self }
    for name, value in pairs(life) do
        class[name] = value
    end
    self.life_mt = { __index = class }
    --- The requests in flight to a peer, over all workers if they are counted.
    function self.load(peer)
        local cell = peer.cell
        return cell and self.cells:sum(cell) or peer.mine
    end
    return setmetatable(self, mt)
end

-- Building from what was pushed

local function read_ejection(pushed)
    local statuses, alarm
    for _, s in ipairs(pushed.statuses or {}) do
        statuses = statuses or {}
        statuses[s] = true
        alarm = min(alarm or OWN_STATUS, s)
    end
    return {
        off = pushed.off == true, failures = pushed.failures or DEFAULT_FAILURES,
        base = (pushed.baseMs or DEFAULT_BASE_MS) / 1000,
        max = (pushed.maxMs or DEFAULT_MAX_MS) / 1000, statuses = statuses,
    }, alarm or OWN_STATUS
end

life.ejection = read_ejection({})

local function ejection_of(pushed)
    if not pushed then
        return life.ejection, OWN_STATUS
    end
    return read_ejection(pushed)
end

--- Set a field, unless it is so already: a default that stands once must not become a field of
-- each.
local function set(holder, field, value)
    if holder[field] ~= value then
        holder[field] = value
    end
end

--- What the peer is called where upstreams share names.
local function key_of(self, p)
    return ejections.key(self.id, p.address)
end

local function by_address(self)
    local known = {}
    for _, peers in ipairs({ self.ready, self.draining }) do
        for _, p in ipairs(peers) do
            known[p.address] = p
        end
    end
    return known
end

--- The peers by address, with those that left and are still in flight. Made when it is needed.
local function known_of(self)
    local known = self.known
    if not known then
        known = by_address(self)
        self.known = known
    end
    return known
end

--- A table for a peer: the one that there was, or a new one.
local function peer_of(self, known, address, fresh)
    local p = known[address]
    if p and not p.gone then
        return p
    end
    local registry = self.registry
    if p then
        p.gone, p.down, p.full = false, false, false
    else
        p = setmetatable({ address = address, blocked = false }, peer_mt)
        known[address] = p
    end
    -- No event: nobody was ever ejected.
    local until_when = registry.cells:events() ~= 0
        and registry.ejections:ejected(key_of(self, p)) or nil
    if until_when then
        p.until_when = until_when
    end
    if self.slow_start then
        self:new_peer(p, fresh)
    end
    return p
end

--- The peers of a list that was pushed.
-- @tparam table|nil addresses
-- @tparam table|nil weights nil: all are 1
-- @tparam table known by address: peers that there were, and from now on these
-- @tparam table kept by address: gets these
-- @tparam boolean fresh the whole upstream is new to this worker
local function list_of(self, addresses, weights, known, kept, fresh)
    if not addresses or #addresses == 0 then
        return NONE
    end
    local list = new_table(#addresses, 0)
    for i, address in ipairs(addresses) do
        local p = peer_of(self, known, address, fresh)
        set(p, "weight", weights and weights[i] or 1)
        set(p, "down", false)
        kept[address] = p
        list[i] = p
    end
    return list
end

--- Let go of peers that left, as soon as nothing is in flight to them.
local function forget(self, known, kept)
    local left = false
    for address, p in pairs(known) do
        if not kept[address] then
            p.gone, p.until_when, p.share, p.slow_from = true, nil, nil, nil
            if p.failing then
                p.failing, self.failing = false, self.failing - 1
            end
            if p.mine <= 0 then
                known[address] = nil
            else
                left = true
            end
        end
    end
    return left
end

--- Find the cell of a holder of a count, or let go of it.
local function place(cells, holder, key, count)
    local cell = key and cells:find(key)
    if cell ~= holder.cell then
        if holder.cell then
            cells:set(holder.cell, 0)
        end
        holder.cell = cell
        if cell then
            cells:set(cell, count)
        end
    end
end

local function find_cells(self)
    local cells, a = self.registry.cells, self.admission
    if self.tracked or self.placed then
        for _, p in pairs(known_of(self)) do
            place(cells, p, self.tracked and key_of(self, p) or nil, p.mine)
        end
        self.placed = self.tracked
    end
    if a ~= OPEN then
        place(cells, a, a.bounded and self.id or nil, a.running)
        place(cells, a.line, a.places > 0 and ejections.key(self.id, "queue") or nil, a.queued)
    end
end

--- Get the life of an upstream and take over what was pushed.
-- @tparam string id
-- @tparam table decoded the pushed upstream
-- @treturn table with ready, draining: new lists of the tables of its peers
function _M:life(id, decoded)
    local l = self.lives[id]
    local fresh = l == nil
    if fresh then
        -- The four that every upstream needs: a fifth would double the table.
        l = setmetatable({ id = id, ready = NONE, requests = 0, since = self.now() }, self.life_mt)
        self.lives[id] = l
    end
    l:update(decoded, fresh)
    return l
end

--- The retry budget, made when it is needed: until then it would only count requests.
local function budget_of(self)
    if not self.budget then
        self.budget = budget.new(self.registry, self.id, self.requests, self.since)
    end
    return self.budget
end

local function limit(self, limits)
    if not limits and self.admission == OPEN then
        return
    end
    limits = limits or NONE
    if self.admission == OPEN then
        self.admission = admission.new(self, self.registry)
    end
    self.admission:configure(limits)
    self.peer_limit, self.limited = limits.peer, limits.peer ~= nil
    self.bounded = self.admission.bounded
end

function life:update(decoded, fresh)
    local known, kept = self.known or by_address(self), {}
    if decoded.budget or self.budget then
        budget_of(self):configure(decoded.budget)
    end
    local ejection, alarm = ejection_of(decoded.ejection)
    set(self, "ejection", ejection)
    set(self, "alarm", alarm)
    set(self, "slow_start", decoded.slowStartMs and decoded.slowStartMs / 1000)
    set(self, "tracked", decoded.limits ~= nil or LOAD[decoded.algorithm] == true)
    limit(self, decoded.limits)
    -- Once so, always so: a request that is counted may last.
    self.registry.any_counted = self.registry.any_counted or self.tracked or self.bounded
    self.ready = list_of(self, decoded.peers, decoded.weights, known, kept, fresh)
    set(self, "draining", list_of(self, decoded.draining, nil, known, kept, fresh))
    for _, address in ipairs(decoded.down or NONE) do
        if kept[address] then
            kept[address].down = true
        end
    end
    local left = forget(self, known, kept)
    if self.tracked or self.placed or left then
        self.known = known
    end
    find_cells(self)
    set(self, "known", (self.tracked or left) and known or nil)
    self:settle()
end

--- A peer that was not there begins with a small share. That it is new, and since when, one worker
-- tells the others: each of them looks at the upstream when it first needs it.
-- @tparam boolean fresh the whole upstream is new to this worker, which so knows nothing
function life:new_peer(p, fresh)
    local dict, name = self.registry.dict, "new/" .. key_of(self, p)
    if not fresh then
        dict:safe_add(name, self.registry.now(), self.slow_start)
    end
    local from = dict:get(name)
    if from then
        p.slow_from, p.share = from, LEAST_SHARE
    end
end

-- Who may be picked

local function usable(peers)
    local up = 0
    for i = 1, #peers do
        if not peers[i].down then
            up = up + 1
        end
    end
    return up
end

--- Never more than half of the peers are out: beyond that all are used, for it is then more likely
-- that what they all need is ill, or the network, and the others would drown.
local function settle_list(peers)
    local up, out = usable(peers), 0
    for i = 1, #peers do
        local p = peers[i]
        if p.until_when and (up == 0 or not p.down) then
            out = out + 1
        end
    end
    local panic = out * 2 > (up > 0 and up or #peers)
    local open = 0
    for i = 1, #peers do
        local p = peers[i]
        local away = p.until_when ~= nil and not panic or p.down and up > 0
        set(p, "blocked", away or p.full)
        open = open + (away and 0 or 1)
    end
    return panic and out > 0, open
end

--- Decide anew which peers are blocked, after something happened to one of them.
function life:settle()
    local panic, open = settle_list(self.ready)
    local panic_draining, open_draining = settle_list(self.draining)
    if #self.ready == 0 then
        panic, open = panic_draining, open_draining
    end
    set(self, "panic", panic)
    -- Only those who are let in ask for it.
    if self.admission ~= OPEN then
        self.open = open
    end
    self:list_busy()
end

--- List the peers that the clock or other workers will change.
function life:list_busy()
    local out, slow, full = {}, {}, {}
    for _, peers in ipairs({ self.ready, self.draining }) do
        for _, p in ipairs(peers) do
            out[#out + 1] = p.until_when and p or nil
            slow[#slow + 1] = p.slow_from and p or nil
            full[#full + 1] = p.full and p or nil
        end
    end
    local busy = #out + #slow + #full > 0
    if busy or self.busy then
        self.out, self.slow, self.full = out, slow, full
    end
    set(self, "busy", busy)
    self:watch_ends()
end

--- Set the algorithm that wants to know how fast answers are, if it does.
function life:observe_by(algorithm)
    set(self, "observer", algorithm and algorithm.observe and algorithm or nil)
    self:watch_ends()
end

--- Is any request counted in this worker?
function _M:counting()
    return self.any_counted
end

--- May the log phase leave at once when a request succeeded?
function life:watch_ends()
    set(self, "attentive", self.tracked or self.counted > 0 or self.admission.running > 0
        or self.failing > 0 or self.observer ~= nil)
end

local function come_back(self, p)
    local registry, when = self.registry, p.until_when
    p.until_when = nil
    if self.slow_start then
        p.slow_from, p.share = when, LEAST_SHARE
    end
    if registry.ejections:returned(key_of(self, p), when) then
        self:note("returns")
        registry.log("peer ", p.address, " of ", self.id, " is back after its ejection")
    end
end

local function tend_out(self, now)
    local changed = false
    for _, p in ipairs(self.out) do
        if p.until_when and now >= p.until_when then
            come_back(self, p)
            changed = true
        end
    end
    return changed
end

local function tend_slow(self, now)
    local changed = false
    for i = 1, #self.slow do
        local p = self.slow[i]
        local passed = self.slow_start and (now - (p.slow_from or 0)) / self.slow_start or 1
        if passed >= 1 then
            p.share, p.slow_from, changed = nil, nil, true
        else
            p.share = max(LEAST_SHARE, passed)
        end
    end
    return changed
end

local function tend_full(self)
    local changed, load = false, self.registry.load
    for i = 1, #self.full do
        local p = self.full[i]
        if not self.peer_limit or load(p) < self.peer_limit then
            p.full, changed = false, true
        end
    end
    return changed
end

--- Bring the peers to the present, in all that time and other workers change.
function life:tend()
    local now = self.registry.now()
    local changed = tend_out(self, now)
    if #self.slow > 0 and now - (self.shared_at or 0) >= SHARE_SECONDS then
        self.shared_at = now
        changed = tend_slow(self, now) or changed
    end
    changed = tend_full(self) or changed
    if changed then
        self:settle()
    end
end

--- Before a pick: see what other workers learned. It costs one read where nothing happened.
function life:look()
    local registry = self.registry
    if registry.cells:events() ~= registry.ejections.seen then
        registry:read_news()
    end
    if self.busy then
        self:tend()
    end
end

local function put_out(self, p, until_when)
    p.until_when = until_when
    if p.failing then
        p.failing, self.failing = false, self.failing - 1
    end
    self:settle()
end

function _M:look_at_all()
    for _, l in pairs(self.lives) do
        for _, peers in ipairs({ l.ready, l.draining }) do
            for _, p in ipairs(peers) do
                local until_when = self.ejections:ejected(key_of(l, p))
                if until_when ~= p.until_when then
                    p.until_when = until_when
                end
            end
        end
        l:settle()
    end
end

--- Take over what other workers learned.
function _M:read_news()
    local complete = self.ejections:news(function(key)
        local id, address = ejections.split(key)
        local l = self.lives[id]
        local p = l and known_of(l)[address]
        local until_when = p and self.ejections:ejected(key)
        if until_when and until_when ~= p.until_when then
            put_out(l, p, until_when)
        end
    end)
    if not complete then
        self:look_at_all()
    end
end

-- Requests

--- Count a request to a peer, if it takes one.
-- @treturn boolean false: the peer is full, and blocked now
function life:enter(p)
    if not self.tracked then
        return true
    end
    local cells, cell = self.registry.cells, p.cell
    p.mine, self.counted = p.mine + 1, self.counted + 1
    if not cell then
        if not self.peer_limit or p.mine <= self.peer_limit then
            return true
        end
    else
        cells:set(cell, p.mine)
        if not self.peer_limit then
            return true
        end
        cells:fence()
        if cells:sum(cell) <= self.peer_limit then
            return true
        end
    end
    self:leave(p)
    p.full = true
    self:settle()
    return false
end

--- A request to a peer ended.
function life:leave(p)
    p.mine, self.counted = p.mine - 1, self.counted - 1
    if p.cell then
        self.registry.cells:set(p.cell, p.mine)
    end
    if p.gone and p.mine <= 0 and self.known then
        self.known[p.address] = nil
    end
end

--- The first try of a request.
-- @treturn boolean a retry is promised
function life:began()
    self.requests = self.requests + 1
    local own = self.budget
    return not own or own:began()
end

--- @treturn boolean one more retry is promised
function life:may_retry()
    local own = self.budget
    return not own or own:promise()
end

--- Count something that happened, for the metrics.
-- @tparam string what a name of metrics.OF_UPSTREAM
function life:note(what)
    local counts = self.counts
    if not counts then
        counts = {}
        self.counts = counts
    end
    counts[what] = (counts[what] or 0) + 1
end

--- Pay for a retry.
-- @tparam boolean free it costs nothing
-- @treturn boolean false: it must not be made
function life:retry(free)
    if free or budget_of(self):spend() then
        self:note("retries")
        return true
    end
    self:note("refused")
    return false
end

--- The last element of a variable of nginx's upstream ("0.001, - : ").
local function last_of(list)
    local last
    for word in gmatch(list or "", "[^%s,]+") do
        last = word ~= ":" and word or last
    end
    return last
end

--- Did the peer itself fail? An answer is a failure only by its status; where there was no head of
-- an answer, nginx had no connection, or it waited in vain.
local function is_failure(self, status, header_time)
    local statuses = self.ejection.statuses
    return statuses and statuses[status] or not tonumber(last_of(header_time) or "")
end

local function eject(self, p)
    local registry = self.registry
    local now = registry.now()
    local until_when, times = registry.ejections:eject(key_of(self, p), self.ejection, now)
    if times then
        self:note("ejections")
        registry.log("peer ", p.address, " of ", self.id, " failed ", self.ejection.failures,
            " times in a row: ejected for ", ceil((until_when - now) * 1000), " ms (", times,
            " of late)")
    end
    put_out(self, p, until_when)
end

local function count_failure(self, p)
    if self.ejection.off or p.until_when then
        return
    end
    if not p.failing then
        p.failing, self.failing = true, self.failing + 1
        self:watch_ends()
    end
    if self.registry.ejections:failure(key_of(self, p)) >= self.ejection.failures then
        eject(self, p)
    end
end

--- The mark of a request tells what it is counted in: "" nothing, "+" the upstream, then the
-- address of the peer; or that all that is done.
local function read_mark(mark)
    local admitted = byte(mark) == PLUS
    return admitted, admitted and sub(mark, 2) or mark
end

--- The mark for a request that enter() let in.
-- @tparam table p peer
-- @tparam string mark that it has now
-- @treturn string|nil nil: none is needed
function life:mark(p, mark)
    if not self.tracked then
        return nil
    end
    if byte(mark) ~= PLUS then
        return p.address
    end
    local marked = p.marked
    if not marked then
        marked = _M.ADMITTED .. p.address
        p.marked = marked
    end
    return marked
end

--- A try failed, and nginx asks for another peer.
-- @tparam string address
-- @tparam number status of the try
-- @tparam string header_time $upstream_header_time
-- @tparam string mark of the request
-- @treturn string its mark now
function life:failed(address, status, header_time, mark)
    local admitted, counted = read_mark(mark)
    local known = known_of(self)
    if known[counted] then
        self:leave(known[counted])
    end
    local p = known[address or ""]
    if p and is_failure(self, status, header_time) then
        count_failure(self, p)
        if self.observer then
            self.observer:observe(p, 0, true)
        end
    end
    return admitted and _M.ADMITTED or ""
end

local function count_success(self, p)
    if p.failing then
        p.failing, self.failing = false, self.failing - 1
        self:watch_ends()
        self.registry.ejections:success(key_of(self, p))
    end
end

--- See how the last try of a request ended.
local function judge(self, p, status, get)
    local answered = tonumber(last_of(get("upstream_header_time")) or "")
    local statuses = self.ejection.statuses
    local ill = statuses and statuses[status] or not answered and status >= OWN_STATUS
        or status == NO_HTTP
    if ill then
        count_failure(self, p)
    elseif answered then
        count_success(self, p)
    end
    local observer = self.observer
    local seconds = observer and tonumber(last_of(get("upstream_response_time")) or "")
    if seconds then
        -- An overloaded peer that answers 503 at once must not look fast.
        observer:observe(p, seconds, ill or status >= OWN_STATUS)
    end
end

local function finish(self, status, get)
    local mark = get("headgate_peer") or ""
    local refused = byte(mark, -1) == REFUSED
    local admitted, counted = read_mark(mark)
    local known = known_of(self)
    if known[counted] then
        self:leave(known[counted])
    end
    -- After the peer: who is let in must find room there.
    if admitted then
        self.admission:leave()
    end
    local p = not refused and known[last_of(get("upstream_addr")) or ""]
    if p then
        judge(self, p, status, get)
    end
    if not self.tracked then
        self:watch_ends()
    end
end

--- A request ended (log phase).
-- @tparam string id what stood in $headgate_upstream
-- @tparam number status
-- @tparam function get reads variables of nginx
function _M:finished(id, status, get)
    local l = self.lives[id]
    if l and (l.attentive or status >= l.alarm or status == NO_HTTP) then
        finish(l, status, get)
    end
end

-- What each second brings

--- Were there requests since this worker last told so?
local function used(self, l)
    return l.requests ~= (self.told[l.id] or 0)
end

local function renew(self, ids, yield)
    for i, id in ipairs(ids) do
        local l = self.lives[id]
        if l then
            find_cells(l)
        end
        if l and used(self, l) then
            self.told[id] = l.requests
            self.dict:safe_set("used/" .. id, true, 2 * RENEW_SECONDS)
        end
        if i % RENEWED_A_TURN == 0 then
            yield()
        end
    end
end

--- Bring all that is due to the present, used or not. Runs in a timer.
-- @tparam function exists function(id) tells whether the upstream is still pushed; nil: unchanged
-- @tparam function yield lets others run
function _M:sweep(exists, yield)
    if self.cells:events() ~= self.ejections.seen then
        self:read_news()
    end
    local now = self.now()
    local renewing = now - self.renewed >= RENEW_SECONDS
    local ids = (exists or renewing) and {}
    for id, l in pairs(self.lives) do
        if l.busy then
            l:tend()
        end
        if ids then
            ids[#ids + 1] = id
        end
    end
    if exists then
        for i, id in ipairs(ids) do
            local l = self.lives[id]
            if l and not exists(id) and l:idle() then
                self.lives[id], self.told[id] = nil, nil
            end
            if i % 1000 == 0 then
                yield()
            end
        end
    end
    if renewing then
        self.renewed = now
        renew(self, ids, yield)
    end
end

--- Is nothing in flight?
function life:idle()
    return self.counted <= 0 and self.admission.running <= 0 and self.admission.queued <= 0
end

-- What people and metrics are told

--- @treturn table of a peer, for GET /v1/peers
function life:describe_peer(p, draining)
    local registry = self.registry
    local times, failures = registry.ejections:history(key_of(self, p))
    local left = p.until_when and max(0, p.until_when - registry.now()) or 0
    return {
        address = p.address, weight = p.weight, draining = draining, down = p.down,
        ejectedMs = ceil(left * 1000), ejections = times, failures = failures,
        inFlight = self.tracked and registry.load(p) or nil, share = p.share or 1,
        ewmaMs = self.observer and self.observer.average
            and self.observer:average(p) * 1000 or nil,
    }
end

--- @treturn table of the upstream, for GET /v1/peers
function life:describe()
    self:look()
    local down, ejected, in_flight = 0, 0, nil
    for _, peers in ipairs({ self.ready, self.draining }) do
        for _, p in ipairs(peers) do
            down = down + (p.down and 1 or 0)
            ejected = ejected + (p.until_when and 1 or 0)
            if self.tracked then
                in_flight = (in_flight or 0) + self.registry.load(p)
            end
        end
    end
    return {
        upstream = self.id, peers = #self.ready + #self.draining, down = down, ejected = ejected,
        inFlight = in_flight, panic = self.panic, queued = self.admission:waiting(),
    }
end

--- The ids of the upstreams that some worker used of late, sorted.
function _M:used()
    local ids, list = {}, {}
    for id, l in pairs(self.lives) do
        if used(self, l) then
            ids[id] = true
        end
    end
    for _, key in ipairs(self.dict:get_keys(0)) do
        local _, slash = find(key, "^used/")
        if slash then
            ids[key:sub(slash + 1)] = true
        end
        _, slash = find(key, "^ejected/")
        if slash and self.ejections:ejected(key:sub(slash + 1)) then
            ids[ejections.split(key:sub(slash + 1)) or ""] = true
        end
    end
    for id in pairs(ids) do
        list[#list + 1] = id
    end
    table.sort(list)
    return list
end

--- Hand on what this worker counted since the last call.
-- @tparam function each function(id, counts), with retries, refused (retries that the budget did
--   not allow), ejections, returns, broken (503 of the circuit breaker), overflowed (503 of the
--   queue); all of them of this worker
function _M:counters(each)
    for id, l in pairs(self.lives) do
        local counts = l.counts
        if counts then
            each(id, counts)
            l.counts = nil
        end
    end
end

return _M
