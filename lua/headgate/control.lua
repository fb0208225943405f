--- The control API (docs/design/0001-seams.md), served on a unix socket. Keys and certificates pass
-- through it; nothing of a body is ever logged or sent back.
local apply = require "headgate.apply"
local json = require "headgate.json"
local push_lock = require "headgate.push_lock"
local schema = require "headgate.schema"

local concat, find, match, sub = table.concat, string.find, string.match, string.sub
local tonumber = tonumber

local _M = {}

local MAX_DIGITS = 15 -- a Lua number counts exactly to 2^53
local POINTER_KINDS = { host = true, sni = true, upstream = true, cert = true, setting = true }
local KEYS_A_WRITE = 1000
local REGEXES_A_TURN = 100
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
-- @tparam table o ngx, dict, meta, config, encode, decode, upstreams, state, master_pid,
--   nginx_version; retired: function() true when this worker must not answer any more; siblings:
--   function() gives function(pid), which tells whether there is such a worker
-- @treturn function
function _M.new(o)
    local ngx, dict, meta, encode = o.ngx, o.dict, o.meta, o.encode
    local lock = push_lock.new(meta)

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
        local list, now, there = {}, ngx.now(), o.siblings()
        for _, key in ipairs(meta:get_keys(0)) do
            local w = sub(key, 1, 2) == "w/" and o.decode(meta:get(key) or "")
            if w and there(w.pid) then
                list[#list + 1] = w
            end
        end
        table.sort(list, function(a, b) return a.pid < b.pid end)
        for i, w in ipairs(list) do
            local head = encode({
                pid = w.pid, generation = w.generation, revision = w.revision,
                seenMs = math.max(0, math.floor((now - w.at) * 1000)),
            })
            local errors = json.encode_list(w.errors or {}, encode)
            list[i] = sub(head, 1, -2) .. ',"errors":' .. errors .. "}"
        end
        return json.list(list)
    end

    local function get_state()
        local head = encode({
            boot = meta:get("boot"), schema = schema.NUMBER, luaBuild = o.config.build,
            generation = o.config.generation, revision = meta:get("revision") or 0,
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
                ngx.sleep(0)
            end
        end
        return answer(200, json.list(verdicts))
    end

    local function peer_list(algorithm, draining)
        local list = {}
        for i, p in ipairs(algorithm and algorithm.peers or {}) do
            list[i] = encode({ address = p.address, weight = p.weight, draining = draining })
        end
        return list
    end

    local function get_peers()
        local id = ngx.req.get_uri_args().upstream
        local revision = o.state:revision()
        local upstream = type(id) == "string" and o.upstreams:get(id, revision)
        if not upstream then
            return refuse(404, "unknown", {
                message = "no such upstream; write ?upstream=namespace/service/port",
            })
        end
        local peers = peer_list(upstream.ready, false)
        for _, p in ipairs(peer_list(upstream.draining, true)) do
            peers[#peers + 1] = p
        end
        local head = encode({ upstream = id, revision = revision, pool = upstream.pool,
            algorithm = upstream.kind })
        return answer(200, sub(head, 1, -2) .. ',"peers":' .. json.list(peers) .. "}")
    end

    local handlers = {
        ["GET /v1/state"] = get_state, ["PUT /v1/state"] = put_state, ["GET /v1/keys"] = get_keys,
        ["POST /v1/regex"] = post_regex, ["GET /v1/peers"] = get_peers,
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
