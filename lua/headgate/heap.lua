--- Paces the collector of LuaJIT, which by itself lets a heap grow to twice what lives before it
-- begins to look, and to half as much again until it is through. What 10,000 hosts leave in a
-- worker is 20 MiB, and to look through that takes 45 ms, in steps of at most 0.5 ms; a request
-- leaves about 120 bytes of garbage.
local _M = {}
local mt = { __index = _M }

-- In percent of the pace at which memory is taken. With more the same work ends sooner, but a turn
-- that takes much memory lasts longer: 800 made turns of 20 ms where 400 makes some of 16 and
-- LuaJIT's own 200 of 10 to 15 (a scrape of 10,000 hosts).
local STEPS = 400
-- Pauses are in percent of what lives. A small heap is cheap to let grow; in a large one, this one
-- costs 0.8 % of a core at 20,000 requests a second, and LuaJIT's own 0.4 %.
local SMALL, SERVING = 300, 160
local SMALL_KIB = 8192
-- While objects are decoded, they leave more garbage than requests do, which lies between what
-- stays: memory that was taken once is never given back. 14 us an object.
local LOADING = 108
-- So many objects a second are a load; where fewer change, the garbage of requests counts.
local MANY = 500

--- In the master, when all is loaded: what that left behind is collected, for each worker would
-- inherit it.
-- @tparam table o collect: collectgarbage; built: function() how many objects were decoded so far
-- @treturn table
function _M.new(o)
    o.collect("collect")
    return setmetatable({ collect = o.collect, built = o.built, seen = 0, pause = 0 }, mt)
end

--- In a worker, when it starts.
function _M:start()
    self.seen = self.built()
    self.collect("setstepmul", STEPS)
    self:tick()
end

--- What each second brings.
function _M:tick()
    local built, pause = self.built(), SERVING
    if built - self.seen >= MANY then
        pause = LOADING
    elseif self.collect("count") < SMALL_KIB then
        pause = SMALL
    end
    self.seen = built
    if self.pause ~= pause then
        self.pause = pause
        self.collect("setpause", pause)
    end
end

return _M
