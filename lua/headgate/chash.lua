--- Consistent hash by multi-probe (Appleton and O'Reilly, 2015): a peer has few points on a circle
-- of 2^32, a key probes the circle at many places, and the peer wins whose point follows closest
-- behind one of them.
--
-- Why this one: a peer that comes takes keys from others and moves no other key, one that goes or
-- is out loses its keys to all the others, in exact proportion; every proxy and worker agrees,
-- whatever it has seen before. Eight points and 16 probes spread keys as evenly as 300 points a
-- peer do on a ring with one probe (the shares differ by 6 %), and 10,000 peers are built in some
-- milliseconds. Maglev moves keys that need not move and wants a table of a hundred times the
-- peers; jump hash can only lose its last peer; rendezvous hash asks every peer for every request.
local bit = require "bit"
local ffi = require "ffi"
local eligible = require "headgate.balancer.eligible"

local band, bxor, rshift, tobit = bit.band, bit.bxor, bit.rshift, bit.tobit
local byte, floor, max, min = string.byte, math.floor, math.max, math.min

local _M = {}
local mt = { __index = _M }

local POINTS = 8
local PROBES = 16
local CIRCLE = 4294967296
-- Of different weights, the largest has so many times the points of a peer.
local MAX_UNITS = 32
-- Weights may ask for so many points at least, and for POINTS a peer.
local MAX_POINTS = 131072
-- Odd numbers: 2^32 over the golden ratio, and those that mix (MurmurHash3).
local GOLDEN, MIX_1, MIX_2 = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35
local FNV_START, FNV_PRIME = 0x811C9DC5, 0x01000193

--- The low 32 bits of a product; Lua's numbers hold 53.
local function multiply(a, b)
    return tobit(band(a, 0xFFFF) * b + band(rshift(a, 16) * b, 0xFFFF) * 65536)
end

--- Each bit of a number changes each bit of the result (the finalizer of MurmurHash3).
local function mix(h)
    h = multiply(bxor(h, rshift(h, 16)), MIX_1)
    h = multiply(bxor(h, rshift(h, 13)), MIX_2)
    return bxor(h, rshift(h, 16))
end

--- A bit pattern as a place on the circle.
local function place(h)
    return h < 0 and h + CIRCLE or h
end

--- A second hash of an address: two of 32 bits never meet in both.
local function fnv(s)
    local h = tobit(FNV_START)
    for i = 1, #s do
        h = multiply(bxor(h, byte(s, i)), FNV_PRIME)
    end
    return h
end

local function greatest_divisor(a, b)
    while b > 0 do
        a, b = b, a % b
    end
    return a
end

--- How many points each peer has.
-- @treturn function function(peer) number
local function point_counter(peers)
    local divisor, largest, sum, equal = 0, 0, 0, true
    for i = 1, #peers do
        local weight = peers[i].weight
        divisor, largest = greatest_divisor(weight, divisor), max(largest, weight)
        sum, equal = sum + weight, equal and weight == peers[1].weight
    end
    if equal then
        return function() return POINTS end
    end
    local limit = max(MAX_POINTS, POINTS * #peers)
    local unit = max(divisor, largest / MAX_UNITS, sum * POINTS / limit)
    return function(peer)
        return max(1, floor(peer.weight / unit * POINTS + 0.5))
    end
end

local function same(peers, previous)
    if not previous or #previous.peers ~= #peers then
        return false
    end
    for i = 1, #peers do
        local a, b = peers[i], previous.peers[i]
        if a.address ~= b.address or a.weight ~= previous.weights[i] then
            return false
        end
    end
    return true
end

--- Sort within each slot of the index; there is about one point in each.
local function sort_slots(self)
    local points, owners, peers = self.points, self.owners, self.peers
    for i = 1, self.count - 1 do
        local point, owner = points[i], owners[i]
        local k = i - 1
        -- Of two peers at one place the order must not depend on the order of the list.
        while k >= 0 and (points[k] > point or points[k] == point
            and peers[owners[k]].address > peers[owner].address) do
            points[k + 1], owners[k + 1] = points[k], owners[k]
            k = k - 1
        end
        points[k + 1], owners[k + 1] = point, owner
    end
end

--- Fill points, owners and the index of slots.
local function build(self, hash)
    local peers, counter = self.peers, point_counter(self.peers)
    local count = 0
    for i = 1, #peers do
        count = count + counter(peers[i])
    end
    local slots, shift = 1, 32
    while slots < count do
        slots, shift = slots * 2, shift - 1
    end
    local places, at = ffi.new("uint32_t[?]", count), 0
    local starts = ffi.new("int32_t[?]", slots + 1)
    for i = 1, #peers do
        local first, step = hash(peers[i].address), fnv(peers[i].address)
        self.seeds[i] = step
        for j = 1, counter(peers[i]) do
            local p = place(mix(tobit(first + multiply(step, j))))
            places[at], at = p, at + 1
            local slot = floor(p / CIRCLE * slots) + 1
            starts[slot] = starts[slot] + 1
        end
    end
    for i = 1, slots do
        starts[i] = starts[i] + starts[i - 1]
    end
    self.count, self.slots, self.starts = count, slots, starts
    self.points, self.owners = ffi.new("uint32_t[?]", count), ffi.new("int32_t[?]", count)
    local free = ffi.new("int32_t[?]", slots)
    ffi.copy(free, starts, slots * 4)
    at = 0
    for i = 1, #peers do
        for _ = 1, counter(peers[i]) do
            local p = places[at]
            local slot = floor(p / CIRCLE * slots)
            self.points[free[slot]], self.owners[free[slot]] = p, i
            free[slot], at = free[slot] + 1, at + 1
        end
    end
    sort_slots(self)
end

--- @tparam table peers list of {address, weight, blocked, share}, not empty; which ones, not in
--   which order, decides on who wins
-- @tparam table|nil previous the one that this replaces: equal peers are not built again
-- @tparam function hash function(string) number of 32 bits
-- @treturn table with owner(key), winner(key, ctx)
function _M.new(peers, previous, hash)
    local self = setmetatable({
        peers = peers, hash = hash, weights = {}, seeds = {}, chosen = {}, round = 0,
    }, mt)
    for i = 1, #peers do
        self.weights[i], self.chosen[i] = peers[i].weight, 0
    end
    if same(peers, previous) then
        self.count, self.slots, self.starts = previous.count, previous.slots, previous.starts
        self.points, self.owners = previous.points, previous.owners
        self.seeds = previous.seeds
    else
        build(self, hash)
    end
    return self
end

--- The first point at a place or behind it.
local function following(self, where)
    local points, count = self.points, self.count
    local i = self.starts[floor(where / CIRCLE * self.slots)]
    while i < count and points[i] < where do
        i = i + 1
    end
    return i < count and i or 0
end

local function distance(from, to)
    local d = to - from
    return d < 0 and d + CIRCLE or d
end

--- Where a key probes first, and how far it goes on each time (double hashing).
local function probes(h)
    local first = mix(h)
    return place(first), place(mix(tobit(first + GOLDEN)))
end

local function forward(where, step)
    local next_place = where + step
    return next_place < CIRCLE and next_place or next_place - CIRCLE
end

--- The number of the peer that wins when nobody is out.
local function plain_winner(self, h)
    local points, best, least = self.points, 0, CIRCLE
    local where, step = probes(h)
    for _ = 1, PROBES do
        local i = following(self, where)
        local d = distance(where, points[i])
        if d < least then
            best, least = i, d
        end
        where = forward(where, step)
    end
    return self.owners[best]
end

--- May a peer win a key? One in slow start wins its share of the keys that will be its own.
local function admitted(self, number, h, ctx, all)
    local peer = self.peers[number]
    if self.chosen[number] == self.round or not eligible(peer, ctx) then
        return false
    end
    local share = peer.share
    return all or not share or place(mix(bxor(h, self.seeds[number]))) < share * CIRCLE
end

--- The number of the peer that wins when those are left out that are not admitted; nil: nobody is.
local function careful_winner(self, h, ctx, all)
    local points, owners, count = self.points, self.owners, self.count
    local best, least = nil, CIRCLE
    local where, step = probes(h)
    for _ = 1, PROBES do
        local i, left = following(self, where), count
        while left > 0 and not admitted(self, owners[i], h, ctx, all) do
            i, left = i + 1, left - 1
            if i == count then
                i = 0
            end
        end
        if left == 0 then
            return nil
        end
        local d = distance(where, points[i])
        if d < least then
            best, least = i, d
        end
        where = forward(where, step)
    end
    return best and owners[best]
end

local function number_of(self, h, ctx)
    local number = plain_winner(self, h)
    if admitted(self, number, h, ctx, false) then
        return number
    end
    return careful_winner(self, h, ctx, false) or careful_winner(self, h, ctx, true)
end

--- The peer that a key belongs to, be it out or not.
-- @tparam string key
-- @treturn table peer
function _M:owner(key)
    return self.peers[plain_winner(self, self.hash(key))]
end

--- The peer that gets a key: its owner or, while that one is out, another.
-- @tparam string key
-- @tparam table ctx tried: set of addresses or nil; any: true to take blocked peers, too
-- @treturn table|nil peer; nil when all are out
function _M:winner(key, ctx)
    self.round = self.round + 1
    local number = number_of(self, self.hash(key), ctx)
    return number and self.peers[number]
end

--- The peer of a certain rank for a key: the one that would win if those of lower rank were gone.
-- @tparam string key
-- @tparam table ctx as for winner
-- @tparam number rank from 1; one too high gives the last
-- @treturn table|nil peer; nil when all are out
function _M:ranked(key, ctx, rank)
    self.round = self.round + 1
    local h, last = self.hash(key), nil
    for _ = 1, min(rank, #self.peers) do
        local number = number_of(self, h, ctx)
        if not number then
            break
        end
        last = number
        self.chosen[number] = self.round
    end
    return last and self.peers[last]
end

return _M
