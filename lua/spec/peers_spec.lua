package.path = "./?.lua;./spec/?.lua;" .. package.path

local peers_fixture = require "peers_fixture"

local open, reader = peers_fixture.open, peers_fixture.reader

--- Variables of a request whose last try ended without an answer.
local function failed_at(address)
    return reader({
        upstream_addr = address, upstream_header_time = "-", upstream_response_time = "0.001",
    })
end

local function answered_by(address, seconds)
    return reader({
        upstream_addr = address, upstream_header_time = seconds or "0.001",
        upstream_response_time = seconds or "0.001",
    })
end

describe("peers", function()
    local proxy, clock

    before_each(function()
        proxy = peers_fixture.proxy()
        clock = proxy.clock
    end)

    local function worker(o)
        return peers_fixture.worker(proxy, o)
    end

    local FOUR = { peers = { "a:1", "b:1", "c:1", "d:1" } }

    --- Let a peer fail as often as it takes to eject it.
    local function eject(w, address, times)
        for _ = 1, times or 3 do
            w:finished("u", 502, failed_at(address))
        end
    end

    it("are kept over pushes", function()
        local w = worker()
        local first = w:life("u", { peers = { "a:1", "b:1" }, weights = { 2, 3 } })
        local a, b = first.ready[1], first.ready[2]
        local second = w:life("u", { peers = { "b:1", "c:1" }, draining = { "a:1" } })
        assert.equal(first, second)
        assert.equal(b, second.ready[1])
        assert.equal(a, second.draining[1])
        assert.equal(1, b.weight)
        -- Another upstream has tables of its own.
        assert.not_equal(b, w:life("v", { peers = { "b:1" } }).ready[1])
    end)

    it("are ejected after failures in a row, for all workers, at once", function()
        local one, two = worker(), worker()
        local life, other = one:life("u", FOUR), two:life("u", FOUR)
        eject(one, "b:1", 2)
        assert.same({ "a:1", "b:1", "c:1", "d:1" }, open(life))
        eject(one, "b:1", 1)
        assert.same({ "a:1", "c:1", "d:1" }, open(life))
        other:look()
        assert.same({ "a:1", "c:1", "d:1" }, open(other))
        -- One that looks at the upstream for the first time knows it, too.
        assert.same({ "a:1", "c:1", "d:1" }, open(worker():life("u", FOUR)))
        assert.equal(1, #proxy.logged)
        assert.matches("peer b:1 of u failed 3 times in a row: ejected for 5000 ms",
            proxy.logged[1], 1, true)
    end)

    it("count failures of all workers, and a success ends the row", function()
        local one, two = worker(), worker()
        local life = one:life("u", FOUR)
        two:life("u", FOUR)
        eject(one, "b:1", 1)
        eject(two, "b:1", 1)
        one:finished("u", 200, answered_by("b:1"))
        eject(two, "b:1", 2)
        assert.equal(4, #open(life))
        eject(one, "b:1", 1)
        assert.equal(3, #open(life))
    end)

    it("return by the clock, and stay away longer each time", function()
        local w, other = worker(), worker()
        local life = w:life("u", FOUR)
        other:life("u", FOUR)
        local outs = {}
        for _ = 1, 3 do
            eject(w, "b:1")
            outs[#outs + 1] = life.ready[2].until_when - clock.at
            clock.at = life.ready[2].until_when - 0.01
            life:look()
            assert.same({ "a:1", "c:1", "d:1" }, open(life))
            clock.at = clock.at + 0.02
            life:look()
            other:sweep(nil, function() end)
            assert.equal(4, #open(life))
        end
        assert.same({ 5, 10, 20 }, outs)
        -- Each return is told once, though both workers see it.
        assert.equal(6, #proxy.logged)
        -- It was well for long: the back-off begins anew.
        clock.at = clock.at + 400
        eject(w, "b:1")
        assert.equal(5, life.ready[2].until_when - clock.at)
    end)

    for _, jump in ipairs({ -7 * 86400, -3600, 3600, 80000 }) do
        it("are out for as long when the clock of the day jumps by " .. jump, function()
            local w = worker()
            local life = w:life("u", FOUR)
            eject(w, "b:1")
            clock.jumped = clock.jumped + jump
            -- A worker that looks for the first time now sees the same.
            local later = worker()
            assert.same({ "a:1", "c:1", "d:1" }, open(later:life("u", FOUR)))
            assert.same({ 1, 0 }, { later.ejections:history("u|b:1") })
            clock.at = clock.at + 4.9
            life:look()
            assert.equal(3, #open(life))
            clock.at = clock.at + 0.2
            life:look()
            assert.equal(4, #open(life))
            assert.equal(4, #open(worker():life("u", FOUR)))
            assert.is_nil(w.ejections:ejected("u|b:1"))
            assert.same({}, worker():used())
            -- How often it was out is remembered, and for no longer than it should be.
            eject(w, "b:1")
            assert.equal(10, life.ready[2].until_when - clock.at)
            clock.jumped = clock.jumped + jump
            clock.at = clock.at + 400
            life:look()
            eject(w, "b:1")
            assert.equal(5, life.ready[2].until_when - clock.at)
        end)
    end

    it("forget failures of long ago though the clock of the day was put back", function()
        local w = worker()
        assert.equal(1, w.ejections:failure("u|b:1"))
        clock.jumped = -86400
        clock.at = clock.at + 599
        assert.equal(2, w.ejections:failure("u|b:1"))
        clock.at = clock.at + 1
        assert.same({ 0, 0 }, { w.ejections:history("u|b:1") })
        assert.equal(1, w.ejections:failure("u|b:1"))
    end)

    it("stay away no longer than the policy says, with a jitter", function()
        local w = worker()
        w.ejections.random = function() return 1 end
        local back_off = function(times)
            return w.ejections:back_off(times, { base = 5, max = 300 })
        end
        assert.equal(6, back_off(1))
        assert.equal(360, back_off(7))
        assert.equal(360, back_off(5000))
    end)

    it("are all used when more than half are out", function()
        local w = worker()
        local life = w:life("u", FOUR)
        eject(w, "a:1")
        eject(w, "b:1")
        assert.same({ "c:1", "d:1" }, open(life))
        assert.is_false(life.panic)
        eject(w, "c:1")
        assert.is_true(life.panic)
        assert.equal(4, #open(life))
        assert.is_true(life:describe().panic)
        local single = w:life("v", { peers = { "a:1" } })
        for _ = 1, 3 do
            w:finished("v", 504, failed_at("a:1"))
        end
        assert.same({ "a:1" }, open(single))
    end)

    it("that checks found ill are away while another one is up", function()
        local w = worker()
        local life = w:life("u", { peers = { "a:1", "b:1", "c:1" }, down = { "a:1" } })
        assert.same({ "b:1", "c:1" }, open(life))
        eject(w, "b:1")
        assert.same({ "c:1" }, open(life))
        eject(w, "c:1")
        assert.same({ "b:1", "c:1" }, open(life))
        life = w:life("w", { peers = { "a:1", "b:1" }, down = { "a:1", "b:1" } })
        assert.equal(2, #open(life))
        assert.equal(2, life:describe().down)
        assert.same({ "a:1", "b:1" }, open(w:life("v", { peers = { "a:1", "b:1" } })))
    end)

    it("are not ejected by answers, unless by chosen statuses", function()
        local w = worker()
        local life = w:life("u", FOUR)
        for _ = 1, 5 do
            w:finished("u", 502, answered_by("a:1"))
            w:finished("u", 499, failed_at("a:1"))
        end
        assert.equal(4, #open(life))
        life = w:life("u", {
            peers = FOUR.peers, ejection = { failures = 2, statuses = { 429, 503 } },
        })
        for _ = 1, 2 do
            w:finished("u", 429, answered_by("a:1"))
            w:finished("u", 500, answered_by("b:1"))
            w:finished("u", 499, failed_at("b:1"))
        end
        assert.same({ "b:1", "c:1", "d:1" }, open(life))
        life = w:life("v", { peers = FOUR.peers, ejection = { off = true } })
        for _ = 1, 5 do
            w:finished("v", 502, failed_at("a:1"))
        end
        assert.equal(4, #open(life))
    end)

    it("are ejected by tries that nginx repeats", function()
        local w = worker()
        local life = w:life("u", FOUR)
        for _ = 1, 3 do
            assert.equal("", life:failed("a:1", 502, "- : ", ""))
            life:failed("b:1", 503, "0.010 : ", "")
        end
        assert.same({ "b:1", "c:1", "d:1" }, open(life))
    end)

    it("count a refused retry once", function()
        local w = worker()
        local life = w:life("u", FOUR)
        life:failed("a:1", 502, "- : ", "")
        w:finished("u", 502, reader({
            upstream_addr = "a:1, a:1", upstream_header_time = "-, -", headgate_peer = "-",
        }))
        life:failed("a:1", 502, "- : ", "")
        assert.equal(4, #open(life))
        life:failed("a:1", 502, "- : ", "")
        assert.equal(3, #open(life))
    end)

    it("work for one worker alone when the dict is full", function()
        local w, other = worker(), worker()
        local life, theirs = w:life("u", FOUR), other:life("u", FOUR)
        w.ejections:failure("u|a:1")
        w.ejections:failure("u|a:1")
        proxy.dict.full = true
        eject(w, "a:1", 1)
        other:life("u", FOUR)
        theirs:look()
        assert.equal(3, #open(life))
        assert.equal(4, #open(theirs))
    end)

    it("catch up when they missed many events", function()
        local one, two = worker(), worker()
        one:life("u", FOUR)
        local theirs = two:life("u", FOUR)
        for i = 1, 300 do
            one:life("x" .. i, { peers = { "a:1" } })
            for _ = 1, 3 do
                one:finished("x" .. i, 502, failed_at("a:1"))
            end
        end
        eject(one, "d:1")
        for i = 1, 300 do
            one:finished("x" .. i, 502, failed_at("a:1"))
        end
        theirs:look()
        assert.same({ "a:1", "b:1", "c:1" }, open(theirs))
    end)

    describe("in slow start", function()
        local SLOW = { peers = { "a:1", "b:1" }, slowStartMs = 10000 }
        local MORE = { peers = { "a:1", "b:1", "c:1" }, slowStartMs = 10000 }

        it("are new ones, not those of a new upstream", function()
            local w = worker()
            local life = w:life("u", SLOW)
            assert.is_nil(life.ready[1].share)
            life = w:life("u", MORE)
            life:look()
            local c = life.ready[3]
            assert.equal(0.1, c.share)
            clock.at = clock.at + 5
            life:look()
            assert.equal(0.5, c.share)
            assert.equal(0.5, life:describe_peer(c, false).share)
            -- Another worker sees the same start, whenever it looks.
            local other = worker():life("u", MORE)
            other:look()
            assert.equal(0.5, other.ready[3].share)
            clock.at = clock.at + 5
            life:look()
            assert.is_nil(c.share)
            assert.is_nil(life.ready[1].share)
            assert.is_false(life.busy)
        end)

        it("are returned ones", function()
            local w = worker()
            local life = w:life("u", { peers = FOUR.peers, slowStartMs = 10000 })
            eject(w, "b:1")
            clock.at = clock.at + 6
            life:look()
            assert.equal(0.1, life.ready[2].share)
        end)

        it("are those that left and came again", function()
            local w = worker()
            w:life("u", MORE)
            w:life("u", SLOW)
            local life = w:life("u", MORE)
            life:look()
            assert.equal(0.1, life.ready[3].share)
        end)
    end)

    describe("in flight", function()
        local LEAST = { peers = { "a:1", "b:1" }, algorithm = "least_conn" }

        it("are counted over all workers, and a dead worker's are not", function()
            local one, two = worker(), worker()
            local life, theirs = one:life("u", LEAST), two:life("u", LEAST)
            assert.is_true(life:enter(life.ready[1]))
            assert.is_true(theirs:enter(theirs.ready[1]))
            assert.is_true(theirs:enter(theirs.ready[2]))
            assert.equal(2, one.load(life.ready[1]))
            assert.equal(3, life:describe().inFlight)
            local three = worker({ alive = function(pid) return pid ~= two.pid end })
            assert.equal(1, one.load(life.ready[1]))
            assert.equal(0, three.load(three:life("u", LEAST).ready[2]))
        end)

        it("end in the log phase, or when nginx takes another peer", function()
            local w = worker()
            local life = w:life("u", LEAST)
            local a, b = life.ready[1], life.ready[2]
            life:enter(a)
            assert.equal("a:1", life:mark(a, ""))
            assert.equal("", life:failed("a:1", 502, "- : ", "a:1"))
            assert.equal(0, w.load(a))
            life:enter(b)
            w:finished("u", 200, reader({
                upstream_addr = "a:1, b:1", upstream_header_time = "-, 0.001",
                headgate_peer = "b:1",
            }))
            assert.equal(0, w.load(b))
            -- One that came before requests were counted.
            w:finished("u", 200, answered_by("a:1"))
            assert.equal(0, w.load(a))
        end)

        it("are kept for a peer that left until they end", function()
            local w = worker()
            local life = w:life("u", LEAST)
            local a = life.ready[1]
            life:enter(a)
            w:life("u", { peers = { "b:1" }, algorithm = "least_conn" })
            assert.equal(1, w.load(a))
            assert.equal(a, w:life("u", LEAST).ready[1])
            assert.equal(1, w.load(a))
            life = w:life("u", { peers = { "b:1" } })
            w:finished("u", 200, reader({ headgate_peer = "a:1" }))
            assert.equal(0, a.mine)
            assert.is_nil(life.known["a:1"])
            assert.is_false(life.attentive)
        end)

        it("count alone without a cell", function()
            local w = worker()
            w.cells.slot = nil
            local life = w:life("u", { peers = { "a:1" }, limits = { peer = 1 } })
            assert.is_true(life:enter(life.ready[1]))
            assert.is_false(life:enter(life.ready[1]))
            assert.equal(1, w.load(life.ready[1]))
        end)

        it("are bounded for each peer, over all workers", function()
            local limited = { peers = { "a:1", "b:1" }, limits = { peer = 2 } }
            local one, two = worker(), worker()
            local life, theirs = one:life("u", limited), two:life("u", limited)
            assert.is_true(life:enter(life.ready[1]))
            assert.is_true(theirs:enter(theirs.ready[1]))
            assert.is_false(life:enter(life.ready[1]))
            assert.same({ "b:1" }, open(life))
            assert.equal(2, one.load(life.ready[1]))
            -- It ends in the other worker.
            theirs:leave(theirs.ready[1])
            life:look()
            assert.same({ "a:1", "b:1" }, open(life))
        end)
    end)

    describe("with limits", function()
        local function admit(life) return life.admission:enter() end

        it("let no more in than the circuit breaker says", function()
            local one, two = worker(), worker()
            local life = one:life("u", { peers = { "a:1" }, limits = { requests = 2 } })
            local theirs = two:life("u", { peers = { "a:1" }, limits = { requests = 2 } })
            assert.is_true(admit(life))
            assert.is_true(admit(theirs))
            assert.same({ false, 1 }, { admit(life) })
            assert.equal(1, life.counts.broken)
            two:finished("u", 200, reader({ headgate_peer = "+" }))
            assert.is_true(admit(life))
        end)

        local QUEUED = { peers = { "a:1", "b:1" }, limits = { peer = 1, queue = 1, queueMs = 200 } }

        it("let requests wait for room", function()
            local w = worker()
            local life = w:life("u", QUEUED)
            assert.is_true(admit(life))
            assert.is_true(admit(life))
            local other = worker()
            proxy.on_wait = function()
                assert.equal(1, life:describe().queued)
                assert.equal(1, other:life("u", QUEUED):describe().queued)
                -- The queue is full: nobody else waits.
                assert.same({ false, 1 }, { admit(life) })
                w:finished("u", 200, reader({ headgate_peer = "+" }))
            end
            local before = clock.at
            assert.is_true(admit(life))
            assert.equal(before, clock.at)
            assert.equal(0, life:describe().queued)
            assert.equal(2, life.admission.running)
        end)

        it("see room that another worker made", function()
            local one, two = worker(), worker()
            local life = one:life("u", QUEUED)
            admit(life)
            admit(two:life("u", QUEUED))
            proxy.on_wait = function()
                proxy.on_wait = nil
                two:finished("u", 200, reader({ headgate_peer = "+" }))
            end
            local before = clock.at
            assert.is_true(admit(life))
            assert.is_true(clock.at - before <= 0.011)
        end)

        it("refuse after a while", function()
            local w = worker()
            local life = w:life("u", {
                peers = { "a:1" }, limits = { peer = 1, queue = 5, queueMs = 2500 },
            })
            admit(life)
            local before = clock.at
            assert.same({ false, 3 }, { admit(life) })
            assert.is_true(clock.at - before >= 2.5 and clock.at - before < 2.6)
            assert.equal(1, life.counts.overflowed)
            assert.equal(0, life.admission.queued)
        end)

        it("have room only at peers that may be picked", function()
            local w = worker()
            local life = w:life("u", {
                peers = FOUR.peers, limits = { peer = 1 }, ejection = { failures = 1 },
            })
            w:finished("u", 502, failed_at("a:1"))
            for _ = 1, 3 do
                assert.is_true(admit(life))
            end
            assert.same({ false, 1 }, { admit(life) })
        end)

        it("come and go by pushes without a leak", function()
            local w = worker()
            local life = w:life("u", QUEUED)
            admit(life)
            w:life("u", { peers = { "a:1" } })
            assert.is_true(life.attentive)
            w:finished("u", 200, reader({ headgate_peer = "+" }))
            assert.equal(0, life.admission.running)
            assert.is_false(life.attentive)
            -- One that was not counted ends when there are limits.
            w:life("u", QUEUED)
            w:finished("u", 200, answered_by("a:1"))
            assert.equal(0, life.admission.running)
        end)
    end)

    it("need nothing from the log phase when all is well", function()
        local w = worker()
        w:life("u", FOUR)
        local function get(name)
            error("read $" .. name)
        end
        w:finished("u", 200, get)
        w:finished("u", 404, get)
        w:finished("other", 502, get)
    end)

    it("tell the algorithm how fast they are", function()
        local w, seen = worker(), {}
        local life = w:life("u", FOUR)
        life:observe_by({
            observe = function(_, p, seconds, ill)
                seen[#seen + 1] = { p.address, seconds, ill }
            end,
        })
        w:finished("u", 200, answered_by("a:1", "0.250"))
        w:finished("u", 200, reader({
            upstream_addr = "a:1, b:1", upstream_header_time = "-, 0.030",
            upstream_response_time = "0.010, 0.040",
        }))
        w:finished("u", 504, failed_at("c:1"))
        w:finished("u", 503, answered_by("d:1"))
        life:failed("b:1", 502, "- : ", "")
        assert.same({
            { "a:1", 0.25, false }, { "b:1", 0.04, false }, { "c:1", 0.001, true },
            { "d:1", 0.001, true }, { "b:1", 0, true },
        }, seen)
    end)

    it("are forgotten with their upstream when nothing is in flight", function()
        local w = worker()
        local life = w:life("u", { peers = { "a:1" }, algorithm = "least_conn" })
        life:enter(life.ready[1])
        local function gone() return false end
        w:sweep(gone, function() end)
        assert.equal(life, w.lives.u)
        w:finished("u", 200, reader({ headgate_peer = "a:1" }))
        w:sweep(gone, function() end)
        assert.is_nil(w.lives.u)
    end)

    it("keep their cells for as long as the upstream is there", function()
        local w = worker()
        local life = w:life("u", { peers = { "a:1" }, algorithm = "p2c" })
        local cell = life.ready[1].cell
        life:enter(life.ready[1])
        for _ = 1, 30 do
            clock.at = clock.at + 61
            w:sweep(nil, function() end)
        end
        assert.equal(cell, life.ready[1].cell)
        assert.equal(1, w.load(life.ready[1]))
    end)

    it("give retries what the requests before the first one are worth", function()
        local life = worker():life("u", FOUR)
        for _ = 1, 1000 do
            clock.at = clock.at + 0.001
            assert.is_true(life:began())
        end
        local granted = 0
        for _ = 1, 300 do
            granted = granted + (life:retry() and 1 or 0)
        end
        -- 20 % of a second's requests, and three.
        assert.is_true(granted >= 200 and granted <= 204, granted)
        assert.same({ retries = granted, refused = 300 - granted }, life.counts)
    end)

    it("keep the retry budget over a push, with its new share", function()
        local w = worker()
        local life = w:life("u", { peers = FOUR.peers, budget = { percent = 0, min = 1 } })
        assert.same({ true, false }, { life:retry(), life:retry() })
        assert.equal(life, w:life("u", FOUR))
        clock.at = clock.at + 1
        local now = { life:retry(), life:retry(), life:retry(), life:retry() }
        assert.same({ true, true, true, false }, now)
    end)

    it("tell an upstream as used only while it is", function()
        local one = worker()
        local life = one:life("u", FOUR)
        life:began()
        clock.at = clock.at + 61
        one:sweep()
        assert.same({ "u" }, worker():used())
        clock.at = clock.at + 61
        one:sweep()
        assert.same({ "u" }, one:used()) -- told at the sweep before
        clock.at = clock.at + 61
        one:sweep()
        assert.same({}, one:used())
    end)

    it("let others run while many upstreams are renewed", function()
        local one, yields = worker(), 0
        for i = 1, 2000 do
            one:life("u" .. i, FOUR):began()
        end
        clock.at = clock.at + 61
        one:sweep(nil, function() yields = yields + 1 end)
        assert.equal(4, yields)
        assert.equal(2000, #worker():used())
    end)

    it("tell which upstreams were used, by any worker, or have somebody ejected", function()
        local one, two = worker(), worker()
        one:life("u", FOUR)
        two:life("v", FOUR):began()
        one:life("w", FOUR):began()
        for _ = 1, 3 do
            one:finished("u", 502, failed_at("a:1"))
        end
        clock.at = clock.at + 61
        two:sweep(nil, function() end)
        one:life("u", FOUR)
        for _ = 1, 3 do
            one:finished("u", 502, failed_at("b:1"))
        end
        assert.same({ "u", "v", "w" }, one:used())
        assert.same({ "u", "v" }, worker():used())
    end)

    it("tell what they counted once", function()
        local w, seen = worker(), {}
        w:life("u", FOUR)
        w:life("v", FOUR)
        eject(w, "a:1")
        local function note(id, counts) seen[id] = counts.ejections end
        w:counters(note)
        assert.same({ u = 1 }, seen)
        w:counters(note)
        assert.same({ u = 1 }, seen)
    end)
end)
