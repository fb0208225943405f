local exposition = require "headgate.exposition"
local families = require "headgate.families"
local fixture = require "spec.fixture"
local metrics = require "headgate.metrics"

local SOURCE = { "Ingress", "shop", "web", "cart", "80" }

describe("metrics", function()
    local dict, vars, now, gone, yields, handed
    local one

    local function new()
        return metrics.new({
            dict = dict, get = function(name) return vars[name] end,
            numbers = {
                whole = function(name) return tonumber(vars[name]) end,
                seconds = function(name) return tonumber(vars[name]) end,
                filled = function(name) return (vars[name] or "") ~= "" end,
            },
            handover = handed, now = function() return now end,
            age = function() return vars.age end,
            yield = function() yields = yields + 1 end,
            exists = function(label) return not gone[label] end,
        })
    end

    before_each(function()
        dict = fixture.dict()
        metrics.prepare(dict)
        vars, now, gone, yields, handed = {}, 1000, {}, 0, fixture.handover()
        one = new()
        one.pid = 7
    end)

    local function request(m, label, o)
        o = o or {}
        vars = {
            request_method = o.method or "GET", request_length = "100",
            bytes_sent = "1000", age = o.seconds or 0.02,
            upstream_response_time = o.upstream,
            headgate_upgrade = o.upgrade or "",
        }
        handed.tell(label)
        if o.id ~= false then
            handed.give(o.id or "shop/cart/80")
        end
        m:count(o.status or 200)
        handed.forget()
    end

    --- All lines, without comments.
    local function told(o)
        o = o or {}
        local text = {}
        exposition.write({
            dict = dict, dicts = { { name = "state", dict = dict } },
            get = function(name) return ({ connections_active = "3" })[name] end,
            used = o.used or {}, revision = 12, alive = o.alive or function() return true end,
            counted = o.counted or {},
        }, function(piece) text[#text + 1] = piece end, function() yields = yields + 1 end)
        local lines = {}
        for line in table.concat(text):gmatch("[^\n]+") do
            local name, value = line:match("^([^#].*) (%S+)$")
            if name then
                assert.is_nil(lines[name], name)
                lines[name] = tonumber(value)
            end
        end
        return lines
    end

    local LABELS = 'host="a.test",ingress="shop/web",service="cart",port="80"'

    it("never go backwards, whatever the clock of the day does", function()
        request(one, metrics.label("a.test", SOURCE), { seconds = -7200 })
        one:flush(function() end)
        local sum, count = nil, nil
        for name, value in pairs(told()) do
            sum = name:find("^headgate_proxy_request_duration_seconds_sum") and value or sum
            count = name:find("^headgate_proxy_request_duration_seconds_count") and value or count
        end
        assert.equal(0, sum)
        assert.equal(1, count)
    end)

    it("counts by route, method and status", function()
        local label = metrics.label("a.test", SOURCE)
        request(one, label)
        request(one, label)
        request(one, label, { method = "POST", status = 503 })
        request(one, label, { method = "BREW" })
        request(one, label, { method = "BEFORE" })
        assert.is_nil(told()["headgate_proxy_requests_total{" .. LABELS
            .. ',method="GET",status="200"}'])
        one:tick(false)
        local t = told()
        local function of(method, s)
            return t["headgate_proxy_requests_total{" .. LABELS .. ',method="' .. method
                .. '",status="' .. s .. '"}']
        end
        assert.equal(2, of("GET", 200))
        assert.equal(1, of("POST", 503))
        assert.equal(2, of("OTHER", 200))
        assert.equal(500, t["headgate_proxy_received_bytes_total{" .. LABELS .. "}"])
        assert.equal(5000, t["headgate_proxy_sent_bytes_total{" .. LABELS .. "}"])
        assert.equal(12, t.headgate_proxy_revision)
        assert.equal(3, t['headgate_proxy_connections{state="active"}'])
    end)

    it("puts times into buckets that add up", function()
        local label = metrics.label("a.test", SOURCE)
        for _, seconds in ipairs({ 0, 0.004, 0.03, 0.2, 3, 60 }) do
            request(one, label, { seconds = seconds, upstream = "9.000, 0.030" })
        end
        request(one, label, { upstream = "-" })
        request(one, label, { seconds = 3600, status = 101, upstream = "3600.000" }) -- a tunnel
        one:tick(false)
        local t = told()
        local function bucket(name, le)
            return t["headgate_proxy_" .. name .. "_duration_seconds_bucket{" .. LABELS .. ',le="'
                .. le .. '"}']
        end
        assert.same({ 2, 3, 4, 5, 5, 6, 6, 7 }, {
            bucket("request", "0.005"), bucket("request", "0.025"), bucket("request", "0.05"),
            bucket("request", "0.1") + 1, bucket("request", "0.25"), bucket("request", "5"),
            bucket("request", "10"), bucket("request", "+Inf"),
        })
        assert.equal(6, bucket("upstream", "0.05"))
        assert.equal(6, t["headgate_proxy_upstream_duration_seconds_count{" .. LABELS .. "}"])
        assert.near(0.18, t["headgate_proxy_upstream_duration_seconds_sum{" .. LABELS .. "}"], 1e-9)
    end)

    it("has a bucket for each bound", function()
        for i, bound in ipairs(metrics.BOUNDS) do
            assert.equal(i, metrics.bucket(bound))
            assert.equal(i + 1, metrics.bucket(bound + 1e-6))
        end
        assert.equal(metrics.BUCKETS, #metrics.BOUNDS + 1)
    end)

    it("adds what all workers counted, and keeps it when they are gone", function()
        local two = new()
        local label = metrics.label("a.test", SOURCE)
        local name = "headgate_proxy_requests_total{" .. LABELS .. ',method="GET",status="200"}'
        request(one, label)
        request(two, label)
        request(two, label)
        one:tick(false)
        two:tick(false)
        assert.equal(3, told()[name])
        local three = new() -- in place of two, which was killed after another request
        request(two, label)
        three:tick(false)
        assert.equal(3, told()[name])
        request(three, label)
        three:tick(false)
        assert.equal(4, told()[name])
    end)

    it("adds at once what a worker on its way out counts", function()
        local label = metrics.label("a.test", SOURCE)
        one:tick(true)
        request(one, label)
        assert.equal(1, told()["headgate_proxy_requests_total{" .. LABELS
            .. ',method="GET",status="200"}'])
    end)

    it("has one series for requests that match nothing", function()
        for _, label in ipairs({ "", "" }) do
            request(one, label, { status = 404 })
        end
        request(one, nil, { status = 400 })
        one:tick(false)
        local t = told()
        local empty = 'host="",ingress="",service="",port="",method="GET",status="'
        assert.equal(2, t["headgate_proxy_requests_total{" .. empty .. '404"}'])
        assert.equal(1, t["headgate_proxy_requests_total{" .. empty .. '400"}'])
    end)

    it("bounds the statuses that a peer can invent", function()
        local label = metrics.label("a.test", SOURCE)
        for s = 100, 999 do
            request(one, label, { status = s })
        end
        one:tick(false)
        local n, sum = 0, 0
        for name, value in pairs(told()) do
            if name:find("^headgate_proxy_requests_total") then
                n, sum = n + 1, sum + value
            end
        end
        assert.equal(metrics.MAX_CODES + 1, n)
        assert.equal(900, sum)
        assert.truthy(told()["headgate_proxy_requests_total{" .. LABELS
            .. ',method="OTHER",status="other"}'])
    end)

    it("escapes what stands in labels", function()
        local label = metrics.label('a"\\b', { "Ingress", "n\n", 'x"', "s", "p" })
        request(one, label)
        one:tick(false)
        assert.equal(1, told()['headgate_proxy_requests_total{host="a\\"\\\\b",ingress="n /x\\"",'
            .. 'service="s",port="p",method="GET",status="200"}'])
    end)

    it("tells the host alone where no route matched, and no Ingress where there is none", function()
        request(one, metrics.label("a.test"), { status = 404 })
        request(one, metrics.label("b.test", {}))
        one:tick(false)
        for _, host in ipairs({ 'a.test",', 'b.test",' }) do
            local found
            for name in pairs(told()) do
                found = found or name:find('host="' .. host
                    .. 'ingress="",service="",port="",method', 1, true)
            end
            assert.truthy(found, host)
        end
    end)

    it("lets go of the series of a deleted route, after a while", function()
        local label = metrics.label("a.test", SOURCE)
        request(one, label)
        one:tick(false)
        local name = "headgate_proxy_requests_total{" .. LABELS .. ',method="GET",status="200"}'
        gone[label] = true
        one:sweep()
        now = now + metrics.GONE_SECONDS - 1
        one:sweep()
        assert.equal(1, told()[name])
        gone[label] = nil -- it came back
        one:sweep()
        gone[label] = true
        one:sweep()
        now = now + metrics.GONE_SECONDS
        one:sweep()
        assert.is_nil(told()[name])
        local left = {}
        for key in pairs(dict.values) do
            left[#left + 1] = key:match("^v/") or key:match("^id/") or key:match("^label/")
        end
        assert.same({}, left)
        -- Another worker that still holds the entry starts it anew.
        gone[label] = nil
        request(one, label)
        one:tick(false)
        assert.equal(1, told()[name])
        assert.equal(1, dict:get("next"))
    end)

    it("counts what a full dict drops, and breaks nothing", function()
        dict.limit = 3000
        for i = 1, 50 do
            request(one, metrics.label("host" .. i .. ".test", SOURCE))
        end
        one:tick(false)
        local t = told()
        assert.is_true(t.headgate_proxy_metrics_dropped_total > 0)
        local before = t.headgate_proxy_metrics_dropped_total
        for i = 1, 50 do
            request(one, metrics.label("host" .. i .. ".test", SOURCE))
        end
        one:tick(false)
        assert.is_true(told().headgate_proxy_metrics_dropped_total > before)
    end)

    it("takes the counters of the peers", function()
        local counts = { retries = 2, refused = 1, ejections = 1, returns = 0, broken = 3,
            overflowed = 4 }
        one.peers = { counters = function(_, each)
            if counts then
                each("shop/cart/80#x", counts)
                counts = nil
            end
        end }
        one:tick(false)
        one:tick(false)
        local t = told({ used = { {
            upstream = "shop/cart/80#x", peers = 3, ejected = 1, down = 0, inFlight = 5,
            panic = true,
        } } })
        local of = '{upstream="shop/cart/80#x"'
        assert.equal(2, t["headgate_proxy_retries_total" .. of .. "}"])
        assert.equal(1, t["headgate_proxy_retries_denied_total" .. of .. "}"])
        assert.equal(1, t["headgate_proxy_ejections_total" .. of .. "}"])
        assert.equal(3, t["headgate_proxy_refusals_total" .. of .. ',reason="limit"}'])
        assert.equal(4, t["headgate_proxy_refusals_total" .. of .. ',reason="queue"}'])
        assert.equal(3, t["headgate_proxy_upstream_peers" .. of .. ',state="all"}'])
        assert.equal(5, t["headgate_proxy_upstream_requests" .. of .. "}"])
        assert.equal(1, t["headgate_proxy_upstream_panic" .. of .. "}"])
        gone[metrics.UPSTREAM_LABEL .. "shop/cart/80#x"] = true
        one:sweep()
        now = now + metrics.GONE_SECONDS
        one:sweep()
        assert.is_nil(told()["headgate_proxy_retries_total" .. of .. "}"])
    end)

    it("tells open tunnels of all workers that live", function()
        local two = new()
        two.pid = 8
        for _, m in ipairs({ one, two, two }) do
            vars = { headgate_upgrade = "websocket" }
            m:opened()
            vars = { headgate_upgrade = "" }
            m:opened()
        end
        one:tick(false)
        two:tick(false)
        assert.equal(3, told().headgate_proxy_websockets)
        assert.equal(2, told().headgate_proxy_workers)
        request(two, "", { status = 101, upgrade = "websocket" })
        request(two, "", { status = 404, upgrade = "websocket", id = false }) -- never handed over
        two:tick(false)
        assert.equal(2, told().headgate_proxy_websockets)
        two:tick(true) -- on its way out, it tells of itself with each request
        assert.equal(2, told().headgate_proxy_websockets)
        request(two, "", { status = 101, upgrade = "websocket" })
        assert.equal(1, told().headgate_proxy_websockets)
        assert.equal(1, told().headgate_proxy_workers)
        assert.equal(0, told({ alive = function() return false end }).headgate_proxy_workers)
    end)

    it("lets others run while it adds, sweeps and tells", function()
        for i = 1, 1000 do
            request(one, metrics.label("host" .. i .. ".test", SOURCE))
        end
        one:tick(false)
        assert.is_true(yields >= 15, "adding and sweeping: " .. yields)
        yields = 0
        local pieces, longest = 0, 0
        exposition.write({
            dict = dict, dicts = {}, get = function() end, used = {}, revision = 1,
            alive = function() return true end, counted = {},
        }, function(piece)
            local _, lines = piece:gsub("\n", "\n")
            pieces, longest = pieces + 1, math.max(longest, lines)
        end, function() yields = yields + 1 end)
        assert.is_true(pieces >= 15, pieces .. " pieces")
        assert.is_true(longest <= 1020, longest .. " lines")
        assert.is_true(yields >= 1)
    end)

    it("has entries for the routes of a second, not for all that there are", function()
        local function entries()
            local n = #one.idle
            for _ in pairs(one.entries) do
                n = n + 1
            end
            return n
        end
        for second = 1, 20 do
            for i = 1, 10 do
                request(one, metrics.label("h" .. second .. "." .. i, SOURCE))
            end
            assert.equal(10, entries())
            one:tick(false)
            assert.equal(10, entries())
        end
        local lines, sum = told(), 0
        for name, value in pairs(lines) do
            if name:find("^headgate_proxy_requests_total") then
                sum = sum + value
            end
        end
        assert.equal(200, sum)
    end)

    it("keeps an entry that counts while it is added", function()
        local label = metrics.label("a.test", SOURCE)
        for i = 1, 300 do -- more than are added without a yield
            request(one, metrics.label("h" .. i, SOURCE))
        end
        request(one, label)
        local again = 0
        one:flush(function()
            again = again + 1
            request(one, label)
            request(one, metrics.label("h1", SOURCE))
        end)
        assert.is_true(again > 0)
        one:tick(false)
        local function total(host)
            local sum = 0
            for name, value in pairs(told()) do
                if name:find("^headgate_proxy_requests_total") and name:find(host, 1, true) then
                    sum = sum + value
                end
            end
            return sum
        end
        assert.equal(1 + again, total('"a.test"'))
        assert.equal(1 + again, total('"h1"'))
    end)

    it("tells connections where nginx knows them", function()
        local function total(what, counted)
            return told({ counted = counted })["headgate_proxy_connections_" .. what .. "_total"]
        end
        assert.equal(7, total("accepted", { accepted = 7, dropped = 2 }))
        assert.equal(2, total("dropped", { accepted = 7, dropped = 2 }))
        assert.is_nil(total("accepted"))
    end)

    it("makes no table and no string for a request that it knows", function()
        local label = metrics.label("a.test", SOURCE)
        request(one, label, { upstream = "0.001" })
        one:tick(false)
        collectgarbage()
        collectgarbage("stop")
        local count = one.count
        local before = collectgarbage("count")
        for _ = 1, 1000 do
            count(one, 200)
        end
        local grown = collectgarbage("count") - before
        collectgarbage("restart")
        assert.is_true(grown < 8, grown .. " KiB for 1000 requests")
    end)

    it("has a writer for each family", function()
        for _, f in ipairs(families) do
            assert.truthy(f[1]:find("^headgate_proxy_"))
            assert.truthy(f[4]:find("%.$"), f[1])
        end
    end)
end)
