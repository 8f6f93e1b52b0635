SET ROLE booking;

CREATE TABLE flights (
    id          integer     PRIMARY KEY,
    origin      text        NOT NULL CHECK (origin ~ '^[A-Z]{3}$'),
    destination text        NOT NULL CHECK (destination ~ '^[A-Z]{3}$'),
    departs     timestamptz NOT NULL,
    price_cents integer     NOT NULL CHECK (price_cents > 0),
    seats       integer     NOT NULL CHECK (seats > 0),
    free        integer     NOT NULL CHECK (free BETWEEN 0 AND seats)
) WITH (fillfactor = 70);
CREATE INDEX flights_route ON flights (origin, destination, departs);

CREATE TABLE bookings (
    reference text        PRIMARY KEY,
    flight    integer     NOT NULL REFERENCES flights (id),
    passenger text        NOT NULL,
    version   integer     NOT NULL CHECK (version > 0),
    state     text        NOT NULL CHECK (state IN ('booked', 'cancelled')),
    created   timestamptz NOT NULL DEFAULT now(),
    changed   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX bookings_flight ON bookings (flight);

CREATE TABLE outbox (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reference text        NOT NULL REFERENCES bookings (reference),
    version   integer     NOT NULL,
    kind      text        NOT NULL CHECK (kind IN ('booked', 'changed', 'cancelled')),
    created   timestamptz NOT NULL DEFAULT now(),
    sent      timestamptz,
    UNIQUE (reference, version)
);
CREATE INDEX outbox_to_send ON outbox (id) WHERE sent IS NULL;

-- Five cities, each with each, a flight a day for sixteen days: 320 flights.
INSERT INTO flights (id, origin, destination, departs, price_cents, seats, free)
SELECT number, origin, destination, departs, 4900 + 700 * (number % 31), seats, seats
FROM (
    SELECT row_number() OVER (ORDER BY a.code, b.code, day)::integer AS number,
           a.code AS origin, b.code AS destination,
           timestamptz '2030-06-01 06:00+00' + make_interval(days => day, mins => 15 * (10 * a.place + b.place)) AS departs,
           120 + 20 * ((a.place + b.place + day) % 4) AS seats
    FROM (VALUES ('AMS', 0), ('ATH', 1), ('BER', 2), ('LIS', 3), ('OSL', 4)) AS a (code, place),
         (VALUES ('AMS', 0), ('ATH', 1), ('BER', 2), ('LIS', 3), ('OSL', 4)) AS b (code, place),
         generate_series(0, 15) AS day
    WHERE a.code <> b.code
) AS planned;

ANALYZE;
