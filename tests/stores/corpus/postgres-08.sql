CREATE TABLE corpus.flujo_beliefs (
    scope bytea NOT NULL,
    arm text NOT NULL,
    alpha double precision NOT NULL,
    beta double precision NOT NULL,
    observations bigint NOT NULL,
    mean_cost_usd double precision NOT NULL,
    updated_at double precision NOT NULL
);
CREATE TABLE corpus.flujo_blobs (
    hash bytea NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE corpus.flujo_budgets (
    id bigint NOT NULL,
    hash bytea NOT NULL,
    run text NOT NULL,
    limits text
);
ALTER TABLE corpus.flujo_budgets ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME corpus.flujo_budgets_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE corpus.flujo_pauses (
    id bigint NOT NULL,
    run bigint NOT NULL,
    path text NOT NULL,
    token text NOT NULL,
    message text NOT NULL,
    body text NOT NULL,
    answered uuid,
    due_at double precision
);
ALTER TABLE corpus.flujo_pauses ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME corpus.flujo_pauses_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE corpus.flujo_records (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    kind text NOT NULL,
    path text NOT NULL,
    body text NOT NULL,
    blob bytea,
    gist text,
    at double precision
);
CREATE TABLE corpus.flujo_runs (
    id bigint NOT NULL,
    run_hash bytea NOT NULL,
    run_id text NOT NULL,
    pipeline text NOT NULL,
    status text NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    owner text,
    epoch bigint NOT NULL,
    lease_until double precision NOT NULL,
    next_seq bigint NOT NULL,
    cancel text,
    queue text,
    parent text,
    tokens bigint DEFAULT 0 NOT NULL,
    cost_usd double precision DEFAULT 0 NOT NULL
)
WITH (fillfactor='70');
ALTER TABLE corpus.flujo_runs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME corpus.flujo_runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE corpus.flujo_schema (
    version bigint NOT NULL
);
CREATE TABLE corpus.flujo_shares (
    budget bigint NOT NULL,
    holder_hash bytea NOT NULL,
    holder text NOT NULL,
    run bytea NOT NULL,
    epoch bigint NOT NULL,
    version bigint NOT NULL,
    tokens double precision NOT NULL,
    cost_usd double precision NOT NULL,
    requests bigint NOT NULL,
    tool_calls bigint NOT NULL,
    steps bigint NOT NULL,
    reserved_tokens double precision NOT NULL,
    reserved_usd double precision NOT NULL,
    reserved_requests bigint NOT NULL,
    under_way bigint NOT NULL,
    largest_tokens double precision,
    largest_usd double precision
)
WITH (fillfactor='70');
CREATE UNLOGGED TABLE corpus.flujo_texts (
    run bytea NOT NULL,
    path text NOT NULL,
    text text NOT NULL
);
CREATE UNLOGGED TABLE corpus.flujo_texts_wanted (
    run bytea NOT NULL,
    until double precision NOT NULL
);
CREATE TABLE corpus.flujo_workers (
    name text NOT NULL,
    body text NOT NULL,
    seen_at double precision NOT NULL
);
INSERT INTO corpus.flujo_pauses OVERRIDING SYSTEM VALUE VALUES (1, 1, 'ask', 'completed:b2dc7fa95f99c79e:ask', 'How many?', '{"v":2,"step_name":"ask","message":"How many?","token":"completed:b2dc7fa95f99c79e:ask","attempts":1,"usage":{},"schema":null}', 'b5557452-7275-4a3e-a3cc-e624d24c9f95', NULL);
INSERT INTO corpus.flujo_pauses OVERRIDING SYSTEM VALUE VALUES (2, 2, 'ask', 'paused:31f3bab581439da2:ask', 'How many?', '{"v":2,"step_name":"ask","message":"How many?","token":"paused:31f3bab581439da2:ask","attempts":1,"usage":{},"schema":null}', NULL, NULL);
INSERT INTO corpus.flujo_records VALUES (1, 1, 'admitted', '', '{"v":2,"input":1,"context":{"$":"model","type":"flujo_actors.Context","value":{}},"fingerprint":{"form":2,"facts":[{"kind":"step","agent":"corpus_app.double"},{"kind":"step","agent":"corpus_app.crash"},{"kind":"question","message":"b02ccb03e5f2"},{"kind":"step","agent":"corpus_app.add"}],"steps":[["double",0],["crash",1],["ask",2],["add",3]]}}', NULL, NULL, 1794959634.497831);
INSERT INTO corpus.flujo_records VALUES (1, 2, 'settled', 'double', '{"v":2,"success":{"name":"double","output":2,"latency_s":0.000184},"context":{"$":"model","type":"flujo_actors.Context","value":{"doubled":[2]}}}', NULL, NULL, 1794959634.558943);
INSERT INTO corpus.flujo_records VALUES (1, 3, 'settled', 'crash', '{"v":2,"success":{"name":"crash","output":2,"latency_s":2.7e-05}}', NULL, NULL, 1794959634.569568);
INSERT INTO corpus.flujo_records VALUES (1, 4, 'started', 'ask', '{"v":2,"name":"ask","latency_s":0.071446}', NULL, NULL, 1794959634.659182);
INSERT INTO corpus.flujo_records VALUES (1, 5, 'paused', 'ask', '{"v":2,"step_name":"ask","message":"How many?","token":"completed:b2dc7fa95f99c79e:ask","attempts":1,"usage":{},"schema":null}', NULL, NULL, 1794959634.659203);
INSERT INTO corpus.flujo_records VALUES (1, 6, 'ended', '', '{"v":2,"status":"paused","feedback":"How many?"}', NULL, NULL, 1794959634.670421);
INSERT INTO corpus.flujo_records VALUES (1, 7, 'answered', 'ask', '{"v":2,"answer":40}', NULL, NULL, 1794959634.773668);
INSERT INTO corpus.flujo_records VALUES (1, 8, 'resumed', '', '{"v":2,"owner":"vm:15233:5ec2f177:81d9e254-703f-4a88-8e37-c617aa6a979b:4026531836.4026531834:1545942","epoch":2}', NULL, NULL, 1794959634.786293);
INSERT INTO corpus.flujo_records VALUES (1, 9, 'settled', 'ask', '{"v":2,"success":{"name":"ask","output":40,"latency_s":8.9e-05}}', NULL, NULL, 1794959634.793479);
INSERT INTO corpus.flujo_records VALUES (1, 10, 'settled', 'add', '{"v":2,"success":{"name":"add","output":41,"latency_s":0.000188}}', NULL, NULL, 1794959634.79974);
INSERT INTO corpus.flujo_records VALUES (1, 11, 'ended', '', '{"v":2,"status":"completed"}', NULL, NULL, 1794959634.801658);
INSERT INTO corpus.flujo_records VALUES (2, 1, 'admitted', '', '{"v":2,"input":2,"context":{"$":"model","type":"flujo_actors.Context","value":{}},"fingerprint":{"form":2,"facts":[{"kind":"step","agent":"corpus_app.double"},{"kind":"step","agent":"corpus_app.crash"},{"kind":"question","message":"b02ccb03e5f2"},{"kind":"step","agent":"corpus_app.add"}],"steps":[["double",0],["crash",1],["ask",2],["add",3]]}}', NULL, NULL, 1794959634.804383);
INSERT INTO corpus.flujo_records VALUES (2, 2, 'settled', 'double', '{"v":2,"success":{"name":"double","output":4,"latency_s":0.000128},"context":{"$":"model","type":"flujo_actors.Context","value":{"doubled":[4]}}}', NULL, NULL, 1794959634.813197);
INSERT INTO corpus.flujo_records VALUES (2, 3, 'settled', 'crash', '{"v":2,"success":{"name":"crash","output":4,"latency_s":3e-05}}', NULL, NULL, 1794959634.815177);
INSERT INTO corpus.flujo_records VALUES (2, 4, 'started', 'ask', '{"v":2,"name":"ask","latency_s":0.000389}', NULL, NULL, 1794959634.817098);
INSERT INTO corpus.flujo_records VALUES (2, 5, 'paused', 'ask', '{"v":2,"step_name":"ask","message":"How many?","token":"paused:31f3bab581439da2:ask","attempts":1,"usage":{},"schema":null}', NULL, NULL, 1794959634.817107);
INSERT INTO corpus.flujo_records VALUES (2, 6, 'ended', '', '{"v":2,"status":"paused","feedback":"How many?"}', NULL, NULL, 1794959634.818696);
INSERT INTO corpus.flujo_records VALUES (3, 1, 'admitted', '', '{"v":2,"input":3,"context":{"$":"model","type":"flujo_actors.Context","value":{}},"fingerprint":{"form":2,"facts":[{"kind":"step","agent":"corpus_app.double"},{"kind":"step","agent":"corpus_app.crash"},{"kind":"question","message":"b02ccb03e5f2"},{"kind":"step","agent":"corpus_app.add"}],"steps":[["double",0],["crash",1],["ask",2],["add",3]]}}', NULL, NULL, 1794959636.492186);
INSERT INTO corpus.flujo_records VALUES (3, 2, 'settled', 'double', '{"v":2,"success":{"name":"double","output":6,"latency_s":0.000277},"context":{"$":"model","type":"flujo_actors.Context","value":{"doubled":[6]}}}', NULL, NULL, 1794959636.544426);
INSERT INTO corpus.flujo_runs OVERRIDING SYSTEM VALUE VALUES (1, '\x4ddb3e96801a1ee2b77dc5247c0db478d5f97a93b90e7cdb09f5f51d43764b08', 'completed', 'double >> crash >> ask >> add', 'completed', 1794959634.487193, 1794959634.801104, NULL, 2, 1794959664.780901, 12, NULL, NULL, NULL, 0, 0);
INSERT INTO corpus.flujo_runs OVERRIDING SYSTEM VALUE VALUES (2, '\xa7a9dc5bcf71adb2edc202814060a5ab6fca515382e9f1133dcc47d52d9090a2', 'paused', 'double >> crash >> ask >> add', 'paused', 1794959634.80381, 1794959634.818261, NULL, 1, 1794959664.803814, 7, NULL, NULL, NULL, 0, 0);
INSERT INTO corpus.flujo_runs OVERRIDING SYSTEM VALUE VALUES (3, '\xff42dd0de480c0e0b3709248127b211a8e43d3779693d4c91c49564b8d49708f', 'crashed', 'double >> crash >> ask >> add', 'running', 1794959636.490406, 1794959636.54326, 'vm:15277:8d1dba0f:81d9e254-703f-4a88-8e37-c617aa6a979b:4026531836.4026531834:1546149', 1, 1794959666.490449, 3, NULL, NULL, NULL, 0, 0);
INSERT INTO corpus.flujo_schema VALUES (8);
SELECT pg_catalog.setval('corpus.flujo_budgets_id_seq', 1, false);
SELECT pg_catalog.setval('corpus.flujo_pauses_id_seq', 2, true);
SELECT pg_catalog.setval('corpus.flujo_runs_id_seq', 3, true);
ALTER TABLE ONLY corpus.flujo_beliefs
    ADD CONSTRAINT flujo_beliefs_pkey PRIMARY KEY (scope, arm);
ALTER TABLE ONLY corpus.flujo_blobs
    ADD CONSTRAINT flujo_blobs_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY corpus.flujo_budgets
    ADD CONSTRAINT flujo_budgets_hash_key UNIQUE (hash);
ALTER TABLE ONLY corpus.flujo_budgets
    ADD CONSTRAINT flujo_budgets_pkey PRIMARY KEY (id);
ALTER TABLE ONLY corpus.flujo_pauses
    ADD CONSTRAINT flujo_pauses_pkey PRIMARY KEY (id);
ALTER TABLE ONLY corpus.flujo_records
    ADD CONSTRAINT flujo_records_pkey PRIMARY KEY (run, seq);
ALTER TABLE ONLY corpus.flujo_runs
    ADD CONSTRAINT flujo_runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY corpus.flujo_runs
    ADD CONSTRAINT flujo_runs_run_hash_key UNIQUE (run_hash);
ALTER TABLE ONLY corpus.flujo_shares
    ADD CONSTRAINT flujo_shares_pkey PRIMARY KEY (budget, holder_hash);
ALTER TABLE ONLY corpus.flujo_texts_wanted
    ADD CONSTRAINT flujo_texts_wanted_pkey PRIMARY KEY (run);
ALTER TABLE ONLY corpus.flujo_workers
    ADD CONSTRAINT flujo_workers_pkey PRIMARY KEY (name);
CREATE INDEX flujo_budgets_by_run ON corpus.flujo_budgets USING hash (run);
CREATE INDEX flujo_pauses_by_run ON corpus.flujo_pauses USING btree (run);
CREATE INDEX flujo_pauses_due ON corpus.flujo_pauses USING btree (due_at) WHERE ((answered IS NULL) AND (due_at IS NOT NULL));
CREATE INDEX flujo_records_by_blob ON corpus.flujo_records USING btree (blob) WHERE (blob IS NOT NULL);
CREATE INDEX flujo_runs_by_parent ON corpus.flujo_runs USING hash (parent) WHERE (parent IS NOT NULL);
CREATE INDEX flujo_runs_by_queue ON corpus.flujo_runs USING btree (queue, id) WHERE ((queue IS NOT NULL) AND (status = 'running'::text));
CREATE INDEX flujo_runs_by_status ON corpus.flujo_runs USING btree (status);
CREATE INDEX flujo_runs_to_cancel ON corpus.flujo_runs USING btree (run_hash) WHERE (cancel IS NOT NULL);
CREATE INDEX flujo_texts_by_run ON corpus.flujo_texts USING btree (run);
