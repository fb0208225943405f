--- init_by_lua, in the master: make the shared dicts ready and load every module, so that a worker
-- that is started later runs the same code. Sets the global `headgate`, whose functions the phases
-- in nginx.conf call (worker.lua).
local cjson = require "cjson.safe"

local boot = require "headgate.boot"
local config = require "headgate.config"
local era = require "headgate.era"
local metrics = require "headgate.metrics"
local random = require "headgate.random"
local schema = require "headgate.schema"

local function new_id()
    return (random.bytes(12):gsub(".", function(c) return string.format("%02x", c:byte()) end))
end

return function(o)
    if o.schema ~= schema.NUMBER then
        error("nginx.conf is of schema " .. o.schema .. ", the Lua files of " .. schema.NUMBER)
    end
    config.schema, config.build, config.generation = o.schema, o.build, o.generation
    config.metrics, config.listeners = o.metrics == true, o.listeners
    config.access_log = o.access_log == true
    for _, name in ipairs(o.profiles) do
        config.profiles[name] = true
    end
    assert(boot.start({
        dict = ngx.shared.headgate_state, meta = ngx.shared.headgate_meta,
        state_log = o.state_log, open = io.open, crc32 = ngx.crc32_long,
        new_id = new_id, encode = cjson.encode,
    }))
    metrics.prepare(ngx.shared.headgate_metrics)
    config.load = era.number(ngx.shared.headgate_meta)
    -- LuaJIT compiles the read of a global, but not the require that each phase would begin with
    -- (require alone was 2 % of a request).
    _G.headgate = require "headgate.worker"
end
