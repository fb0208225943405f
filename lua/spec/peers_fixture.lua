--- What specs of the peers need: a clock, shared dicts whose keys end, and workers that share one
-- page.
local cells = require "headgate.cells"
local fixture = require "fixture"
local peers = require "headgate.peers"

local _M = {}

--- A clock that stands still until it is told to go on. The clock of the day is another one, which
-- jumps by what is added to clock.jumped.
function _M.clock(at)
    local clock = { at = at or 1000, jumped = 0 }
    clock.now = function() return clock.at end
    return clock
end

--- A shared dict; keys with a time end by the clock of the day.
function _M.dict(clock)
    local dict, ends, flags = fixture.dict(), {}, {}
    local function day()
        return clock.at + clock.jumped
    end
    local function drop(key)
        if ends[key] and day() >= ends[key] then
            dict.values[key], ends[key] = nil, nil
        end
    end
    local d = { values = dict.values }
    function d.get(_, key)
        drop(key)
        return dict.values[key], dict.values[key] ~= nil and flags[key] or nil
    end
    function d.safe_set(_, key, value, seconds, flag)
        if d.full then
            return nil, "no memory"
        end
        dict.values[key], ends[key], flags[key] = value, seconds and day() + seconds, flag
        return true
    end
    function d.safe_add(_, key, value, seconds, flag)
        if d:get(key) ~= nil then
            return false, "exists"
        end
        return d:safe_set(key, value, seconds, flag)
    end
    function d.incr(_, key, by, init, seconds)
        local value = d:get(key)
        if value == nil and not init then
            return nil, "not found"
        end
        if value == nil then
            if d.full then
                return nil, "no memory"
            end
            dict.values[key], ends[key] = init + by, seconds and day() + seconds
            flags[key] = nil
            return init + by
        end
        dict.values[key] = value + by
        return value + by
    end
    function d.expire(_, key, seconds)
        ends[key] = day() + seconds
        return true
    end
    function d.delete(_, key)
        dict.values[key], ends[key] = nil, nil
    end
    function d.get_keys()
        local keys = {}
        for key in pairs(dict.values) do
            drop(key)
            keys[#keys + 1] = dict.values[key] ~= nil and key or nil
        end
        return keys
    end
    return d
end

--- A proxy, whose workers share a clock and a dict.
function _M.proxy()
    local clock = _M.clock()
    return {
        clock = clock, dict = _M.dict(clock), home = _M.dict(clock), logged = {}, workers = 0,
    }
end

--- A semaphore whose wait runs on_wait and then lets the time pass.
local function semaphores(proxy)
    return {
        new = function()
            local s = { posted = 0 }
            function s.post(_, n) s.posted = s.posted + n end
            function s.wait(_, seconds)
                if proxy.on_wait then
                    proxy.on_wait()
                end
                if s.posted > 0 then
                    s.posted = s.posted - 1
                    return true
                end
                proxy.clock.at = proxy.clock.at + seconds
                return nil, "timeout"
            end
            return s
        end,
    }
end

--- Start a worker.
-- @treturn table the peers of this worker; worker.pid
function _M.worker(proxy, o)
    o = o or {}
    proxy.workers = proxy.workers + 1
    local pid = o.pid or 100 + proxy.workers
    local own_cells = assert(cells.open({
        dict = proxy.dict, home = proxy.home, now = proxy.clock.now,
        random = function() return 1 end,
    }))
    own_cells:claim(pid, o.alive or function() return true end)
    local worker = peers.new({
        dict = proxy.dict, cells = own_cells, now = proxy.clock.now,
        random = function() return 0 end, semaphore = semaphores(proxy),
        log = function(...) proxy.logged[#proxy.logged + 1] = table.concat({ ... }) end,
    })
    worker.pid = pid
    return worker
end

--- The function that reads variables of nginx, over a table.
function _M.reader(variables)
    return function(name) return variables[name] end
end

--- The addresses that may be picked.
function _M.open(life)
    local list = {}
    for _, p in ipairs(life.ready) do
        list[#list + 1] = not p.blocked and p.address or nil
    end
    return list
end

return _M
