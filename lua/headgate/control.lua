--- The control API (docs/design/0001-seams.md), served on a unix socket. Keys and certificates pass
-- through it; nothing of a body is ever logged or sent back.
local apply = require "headgate.apply"
local exposition = require "headgate.exposition"
local json = require "headgate.json"
local push_lock = require "headgate.push_lock"
local report = require "headgate.report"
local schema = require "headgate.schema"
local stall = require "headgate.stall"

local concat, find, match, sub = table.concat, string.find, string.match, string.sub
local tonumber = tonumber

local _M = {}

local MAX_DIGITS = 15 -- a Lua number counts exactly to 2^53
local POINTER_KINDS = { host = true, sni = true, upstream = true, cert = true, setting = true }
local KEYS_A_WRITE = 1000
local REGEXES_A_TURN = 100
local UPSTREAMS_A_TURN = 100
-- The shortest sleep: nginx without OpenResty's patches warns of one of 0.
local PAUSE = 0.001
local LARGE_PIECE = 2048 -- bytes
local LONGEST_STALLS = 60000 -- ms
local REASONS = { record = 400, memory = 507, schema = 409 }

local function whole_number(text)
    if text and #text <= MAX_DIGITS and find(text, "^%d+$") then
        return tonumber(text)
    end
end

--- Read the headers of a push.
-- @tparam function header header(name) gives its value or nil
-- @treturn[1] table schema, pusher, revision, base (number or "*"), part, parts
-- @treturn[2] nil
-- @treturn[2] string what to send instead
function _M.read_push(header)
    local part, parts = match(header("X-Headgate-Part") or "1/1", "^(%d+)/(%d+)$")
    local base = header("X-Headgate-Base")
    local push = {
        schema = whole_number(header("X-Headgate-Schema")),
        pusher = match(header("X-Headgate-Pusher") or "", "^[%w_.-]+$"),
        revision = whole_number(header("X-Headgate-Revision")),
        base = base == "*" and base or whole_number(base),
        part = whole_number(part), parts = whole_number(parts),
    }
    for _, name in ipairs({ "schema", "pusher", "revision", "base", "part", "parts" }) do
        if not push[name] then
            return nil, "X-Headgate-" .. name .. " is missing or not of its form"
        end
    end
    if push.part < 1 or push.part > push.parts then
        return nil, "X-Headgate-Part: write k/n with k from 1 to n"
    end
    return push
end

--- Make the content handler.
-- @tparam table o ngx, dict, meta, config, encode, decode, upstreams, peers, state, master_pid,
--   now: seconds of a clock that never jumps,
--   nginx_version; exposition: dict, dicts, get (see exposition.lua), connections: function() gives
--   its counted; retired: function() true when
--   this worker must not answer any more; siblings: function() gives function(pid), which tells
--   whether there is such a worker
-- @treturn function
function _M.new(o)
    local ngx, dict, meta, encode = o.ngx, o.dict, o.meta, o.encode
    local lock = push_lock.new(meta, o.now)

    local function answer(status, value)
        local body = type(value) == "table" and encode(value) or value
        ngx.status = status
        ngx.header["Content-Type"] = "application/json"
        ngx.header["Content-Length"] = #body
        ngx.print(body)
    end

    local function refuse(status, reason, fields)
        fields = fields or {}
        fields.error = reason
        fields.revision = meta:get("revision") or 0
        return answer(status, fields)
    end

    local function workers()
        local list, now, there = {}, o.now(), o.siblings()
        for _, key in ipairs(meta:get_keys(0)) do
            local w = sub(key, 1, 2) == "w/" and o.decode(meta:get(key) or "")
            if w and there(w.pid) and now - w.at <= report.KEEP_SECONDS then
                list[#list + 1] = w
            elseif w then
                meta:delete(key)
            end
        end
        table.sort(list, function(a, b) return a.pid < b.pid end)
        for i, w in ipairs(list) do
            local head = encode({
                pid = w.pid, generation = w.generation, revision = w.revision,
                seenMs = math.max(0, math.floor((now - w.at) * 1000)), leaving = w.leaving,
            })
            local errors = json.encode_list(w.errors or {}, encode)
            list[i] = sub(head, 1, -2) .. ',"errors":' .. errors .. "}"
        end
        return json.list(list)
    end

    local function get_state()
        local head = encode({
            boot = meta:get("boot"), schema = schema.NUMBER, luaBuild = o.config.build,
            generation = o.config.generation, listeners = o.config.listeners,
            revision = o.state:refresh(),
            nginxVersion = o.nginx_version, masterPid = o.master_pid(),
            dict = { capacity = dict:capacity(), free = dict:free_space() },
            pusher = meta:get("pusher") or "",
        })
        return answer(200, sub(head, 1, -2) .. ',"loaded":' .. (meta:get("loaded") or "{}")
            .. ',"workers":' .. workers() .. "}")
    end

    local function key_line(key)
        local kind = match(key, "^(%l+)/")
        if kind == "body" then
            return key .. "\n"
        end
        local hash = POINTER_KINDS[kind] and dict:get(key)
        return hash and key .. " " .. hash .. "\n" or ""
    end

    local function get_keys()
        ngx.header["Content-Type"] = "text/plain"
        local keys = dict:get_keys(0)
        for from = 1, #keys, KEYS_A_WRITE do
            local lines = {}
            for i = from, math.min(from + KEYS_A_WRITE - 1, #keys) do
                lines[#lines + 1] = key_line(keys[i])
            end
            ngx.print(concat(lines))
            ngx.flush(true)
        end
    end

    local function read_body()
        ngx.req.read_body()
        local body = ngx.req.get_body_data()
        if not body and ngx.req.get_body_file() then
            return nil
        end
        return body or ""
    end

    --- Check a first part against what is committed.
    local function check(push)
        local revision = meta:get("revision") or 0
        if push.revision <= revision then
            return nil, "stale"
        end
        if push.base ~= "*" and push.base ~= revision then
            return nil, "base"
        end
        return true
    end

    local function apply_part(push, body)
        local step = apply.new({
            dict = dict, meta = meta, revision = push.revision,
            committed = push.part > 1 and meta:get("revision") == push.revision,
        })
        local ok, kind, err = step:all(body)
        if step.committed then
            o.state:refresh()
        end
        if ok and push.part == push.parts and not step.committed then
            ok, kind, err = nil, "record", "the push has no commit"
        end
        if not ok then
            step:undo()
            lock:release()
            return refuse(REASONS[kind], kind, { message = err })
        end
        if step.committed then
            meta:safe_set("pusher", push.pusher)
        end
        if push.part == push.parts then
            lock:release()
            return answer(200, { revision = push.revision })
        end
        return answer(202, { revision = meta:get("revision") or 0 })
    end

    local function put_state()
        local headers = ngx.req.get_headers()
        local push, err = _M.read_push(function(name) return headers[name] end)
        if not push then
            return refuse(400, "record", { message = err })
        end
        if push.schema ~= schema.NUMBER then
            return refuse(409, "schema", { message = "schema " .. schema.NUMBER .. " is ours" })
        end
        local body = read_body()
        if not body then
            return refuse(413, "record", {
                message = "the part is larger than the buffer; send smaller parts",
            })
        end
        local ok, reason, who = lock:take(push)
        if not ok then
            return refuse(reason == "memory" and 507 or 409, reason, { pusher = who })
        end
        if push.part == 1 then
            ok, reason = check(push)
            if not ok then
                lock:release()
                return refuse(409, reason, { pusher = meta:get("pusher") })
            end
        end
        return apply_part(push, body)
    end

    local function post_regex()
        local patterns = o.decode(read_body() or "")
        if type(patterns) ~= "table" then
            return refuse(400, "record", { message = "send a JSON list of patterns" })
        end
        local verdicts = {}
        for i, pattern in ipairs(patterns) do
            if type(pattern) ~= "string" then
                return refuse(400, "record", { message = "send a JSON list of patterns" })
            end
            -- Without "o": what is only checked must not fill the cache of compiled regexes.
            local _, _, err = ngx.re.find("", pattern, "aij")
            verdicts[i] = err and encode(err) or "null"
            if i % REGEXES_A_TURN == 0 then
                ngx.sleep(PAUSE)
            end
        end
        return answer(200, json.list(verdicts))
    end

    --- Add to a JSON object a member that is a list.
    local function with_list(object, name, list)
        return sub(encode(object), 1, -2) .. ',"' .. name .. '":' .. json.list(list) .. "}"
    end

    local function one_upstream(id)
        local upstream = type(id) == "string" and o.upstreams:get(id, o.state:stamp())
        if not upstream then
            return refuse(404, "unknown", {
                message = "no such upstream; write ?upstream=namespace/service/port",
            })
        end
        local life, list = upstream.life, {}
        local told = life:describe()
        for _, p in ipairs(life.ready) do
            list[#list + 1] = encode(life:describe_peer(p, false))
        end
        for _, p in ipairs(life.draining) do
            list[#list + 1] = encode(life:describe_peer(p, true))
        end
        return answer(200, with_list({
            upstream = id, revision = o.state:committed(), pool = upstream.pool,
            algorithm = upstream.kind, panic = told.panic, queued = told.queued,
        }, "peers", list))
    end

    --- Describe the upstreams that are used, or have something to tell.
    local function used_upstreams()
        local list = {}
        for i, id in ipairs(o.peers:used()) do
            local upstream = o.upstreams:get(id, o.state:stamp())
            if upstream then
                list[#list + 1] = upstream.life:describe()
            end
            if i % UPSTREAMS_A_TURN == 0 then
                ngx.sleep(PAUSE)
            end
        end
        return list
    end

    local function all_upstreams()
        local list = used_upstreams()
        for i, described in ipairs(list) do
            list[i] = encode(described)
        end
        return answer(200, with_list({ revision = o.state:committed() }, "upstreams", list))
    end

    local function get_peers()
        local id = ngx.req.get_uri_args().upstream
        if id then
            return one_upstream(id)
        end
        return all_upstreams()
    end

    --- Watch this worker for some milliseconds (stall.lua).
    local function get_stalls()
        local ms = whole_number(ngx.req.get_uri_args().ms)
        if not ms or ms < 1 or ms > LONGEST_STALLS then
            return refuse(400, "record", {
                message = "write ?ms=N with N from 1 to " .. LONGEST_STALLS,
            })
        end
        local seen = stall.measure(ms, ngx.sleep, stall.CLOCKS)
        seen.pid = ngx.worker.pid()
        return answer(200, seen)
    end

    local function get_metrics()
        local told = {
            dict = o.exposition.dict, dicts = o.exposition.dicts, get = o.exposition.get,
            counted = o.exposition.connections(),
            used = used_upstreams(), revision = meta:get("revision") or 0,
            alive = o.siblings(),
        }
        ngx.header["Content-Type"] = "text/plain; version=0.0.4; charset=utf-8"
        exposition.write(told, function(piece)
            ngx.print(piece)
            if #piece > LARGE_PIECE then
                ngx.flush(true)
                ngx.sleep(PAUSE)
            end
        end, function() ngx.sleep(PAUSE) end)
        return ngx.exit(200)
    end

    local handlers = {
        ["GET /v1/state"] = get_state, ["PUT /v1/state"] = put_state, ["GET /v1/keys"] = get_keys,
        ["POST /v1/regex"] = post_regex, ["GET /v1/peers"] = get_peers,
        ["GET /v1/metrics"] = get_metrics,
        ["GET /v1/stalls"] = get_stalls,
    }

    return function()
        -- Around a reload old workers accept for a moment; where it made the dict anew they hold
        -- the old one.
        if o.retired() or dict:get("boot") ~= meta:get("boot") then
            return refuse(503, "exiting", { message = "an old worker answered; ask again" })
        end
        local handler = handlers[ngx.req.get_method() .. " " .. ngx.var.uri]
        if not handler then
            return refuse(404, "unknown", { message = "no such call" })
        end
        return handler()
    end
end

return _M
