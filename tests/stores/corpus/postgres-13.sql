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
)
WITH (autovacuum_vacuum_scale_factor='0.02');
CREATE TABLE corpus.flujo_budgets (
    id bigint NOT NULL,
    hash bytea NOT NULL,
    run text NOT NULL,
    limits text,
    ends_at double precision,
    raised text,
    warned boolean
);
ALTER TABLE corpus.flujo_budgets ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME corpus.flujo_budgets_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE corpus.flujo_cache (
    key text NOT NULL,
    pipeline text NOT NULL,
    step text NOT NULL,
    until double precision NOT NULL,
    body text NOT NULL
);
CREATE TABLE corpus.flujo_conversations (
    id text NOT NULL,
    scope text,
    revision text NOT NULL,
    updated_at double precision NOT NULL,
    head text,
    tips text NOT NULL,
    body text NOT NULL
);
CREATE TABLE corpus.flujo_duties (
    name text NOT NULL,
    owner text NOT NULL,
    until double precision NOT NULL
);
CREATE TABLE corpus.flujo_entries (
    id text NOT NULL,
    parent text,
    body text NOT NULL
);
CREATE TABLE corpus.flujo_events (
    number bigint NOT NULL,
    event text NOT NULL,
    key text NOT NULL,
    id text NOT NULL,
    body text NOT NULL,
    sender text,
    sent_at double precision NOT NULL,
    status text NOT NULL,
    delivered text NOT NULL,
    refused_by text,
    reason text,
    retain_until double precision NOT NULL,
    dedupe_s double precision NOT NULL,
    keep_until double precision NOT NULL
);
ALTER TABLE corpus.flujo_events ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME corpus.flujo_events_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE corpus.flujo_labels (
    name text NOT NULL,
    value text NOT NULL,
    run bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02');
CREATE TABLE corpus.flujo_outbox (
    number bigint NOT NULL,
    id text NOT NULL,
    run bigint NOT NULL,
    hook text NOT NULL,
    url text NOT NULL,
    event text NOT NULL,
    body text NOT NULL,
    status text NOT NULL,
    attempts bigint NOT NULL,
    created_at double precision NOT NULL,
    next_at double precision,
    owner text,
    error text
);
ALTER TABLE corpus.flujo_outbox ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME corpus.flujo_outbox_number_seq
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
    due_at double precision,
    wait text,
    event text,
    key text,
    asked_at double precision,
    addressee text,
    kind text
)
WITH (autovacuum_vacuum_scale_factor='0.02');
ALTER TABLE corpus.flujo_pauses ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME corpus.flujo_pauses_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE corpus.flujo_queues (
    name text NOT NULL
);
CREATE TABLE corpus.flujo_rates (
    name text NOT NULL,
    resource text NOT NULL,
    free_at double precision DEFAULT 0 NOT NULL,
    refunded double precision DEFAULT 0 NOT NULL,
    blocked_until double precision DEFAULT 0 NOT NULL,
    granted boolean,
    asked_at double precision
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
)
WITH (autovacuum_vacuum_scale_factor='0.02');
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
    cost_usd double precision DEFAULT 0 NOT NULL,
    reply text,
    fingerprint text,
    started_at double precision,
    claimed_at double precision,
    ended_at double precision,
    worked_s double precision DEFAULT 0 NOT NULL,
    retries bigint DEFAULT 0 NOT NULL,
    singleton text,
    ready smallint,
    wake_at double precision,
    key text DEFAULT ''::text NOT NULL,
    priority smallint DEFAULT 0 NOT NULL,
    steered bigint
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02');
ALTER TABLE corpus.flujo_runs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME corpus.flujo_runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE corpus.flujo_schedules (
    name text NOT NULL,
    pipeline text NOT NULL,
    queue text NOT NULL,
    declared text NOT NULL,
    progress text NOT NULL,
    due_at double precision,
    version bigint NOT NULL
);
CREATE TABLE corpus.flujo_schema (
    version bigint NOT NULL,
    record_format bigint NOT NULL
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
CREATE TABLE corpus.flujo_slots (
    name text NOT NULL,
    run bytea NOT NULL,
    epoch bigint NOT NULL,
    holder text NOT NULL
);
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
INSERT INTO corpus.flujo_pauses OVERRIDING SYSTEM VALUE VALUES (1, 1, 'ask', 'completed:b2dc7fa95f99c79e:ask', 'How many?', '{"v":2,"step_name":"ask","message":"How many?","token":"completed:b2dc7fa95f99c79e:ask","attempts":1,"usage":{},"schema":null}', '22871b59-205c-46b6-a8f2-51aa1e287c1b', NULL, NULL, NULL, NULL, 1795005750.562545, NULL, 'input');
INSERT INTO corpus.flujo_pauses OVERRIDING SYSTEM VALUE VALUES (2, 2, 'ask', 'paused:31f3bab581439da2:ask', 'How many?', '{"v":2,"step_name":"ask","message":"How many?","token":"paused:31f3bab581439da2:ask","attempts":1,"usage":{},"schema":null}', NULL, NULL, NULL, NULL, NULL, 1795005750.677586, NULL, 'input');
INSERT INTO corpus.flujo_records VALUES (1, 1, 'admitted', '', '{"v":2,"input":1,"context":{"$":"model","type":"flujo_actors.Context","value":{}},"fingerprint":{"form":2,"facts":[{"kind":"step","agent":"corpus_app.double"},{"kind":"step","agent":"corpus_app.crash"},{"kind":"question","message":"b02ccb03e5f2"},{"kind":"step","agent":"corpus_app.add"}],"steps":[["double",0],["crash",1],["ask",2],["add",3]]}}', NULL, NULL, 1795005750.538861);
INSERT INTO corpus.flujo_records VALUES (1, 2, 'settled', 'double', '{"v":2,"success":{"name":"double","output":2,"latency_s":0.000205},"context":{"$":"model","type":"flujo_actors.Context","value":{"doubled":[2]}}}', NULL, NULL, 1795005750.551317);
INSERT INTO corpus.flujo_records VALUES (1, 3, 'settled', 'crash', '{"v":2,"success":{"name":"crash","output":2,"latency_s":3.9e-05}}', NULL, NULL, 1795005750.555205);
INSERT INTO corpus.flujo_records VALUES (1, 4, 'started', 'ask', '{"v":2,"name":"ask","latency_s":0.000984}', NULL, NULL, 1795005750.56284);
INSERT INTO corpus.flujo_records VALUES (1, 5, 'paused', 'ask', '{"v":2,"step_name":"ask","message":"How many?","token":"completed:b2dc7fa95f99c79e:ask","attempts":1,"usage":{},"schema":null}', NULL, NULL, 1795005750.562856);
INSERT INTO corpus.flujo_records VALUES (1, 6, 'ended', '', '{"v":2,"status":"paused","feedback":"How many?"}', NULL, NULL, 1795005750.568444);
INSERT INTO corpus.flujo_records VALUES (1, 7, 'answered', 'ask', '{"v":2,"answer":40}', NULL, NULL, 1795005750.627756);
INSERT INTO corpus.flujo_records VALUES (1, 8, 'resumed', '', '{"v":2,"owner":"vm:28185:beb40845:b3e11e85-41b4-4119-9305-b85f94f3eb5a:4026531836.4026531834:563263","epoch":2}', NULL, NULL, 1795005750.648984);
INSERT INTO corpus.flujo_records VALUES (1, 9, 'settled', 'ask', '{"v":2,"success":{"name":"ask","output":40,"latency_s":9.1e-05}}', NULL, NULL, 1795005750.651719);
INSERT INTO corpus.flujo_records VALUES (1, 10, 'settled', 'add', '{"v":2,"success":{"name":"add","output":41,"latency_s":0.000127}}', NULL, NULL, 1795005750.654201);
INSERT INTO corpus.flujo_records VALUES (1, 11, 'ended', '', '{"v":2,"status":"completed"}', NULL, NULL, 1795005750.656857);
INSERT INTO corpus.flujo_records VALUES (2, 1, 'admitted', '', '{"v":2,"input":2,"context":{"$":"model","type":"flujo_actors.Context","value":{}},"fingerprint":{"form":2,"facts":[{"kind":"step","agent":"corpus_app.double"},{"kind":"step","agent":"corpus_app.crash"},{"kind":"question","message":"b02ccb03e5f2"},{"kind":"step","agent":"corpus_app.add"}],"steps":[["double",0],["crash",1],["ask",2],["add",3]]}}', NULL, NULL, 1795005750.660883);
INSERT INTO corpus.flujo_records VALUES (2, 2, 'settled', 'double', '{"v":2,"success":{"name":"double","output":4,"latency_s":0.000163},"context":{"$":"model","type":"flujo_actors.Context","value":{"doubled":[4]}}}', NULL, NULL, 1795005750.66614);
INSERT INTO corpus.flujo_records VALUES (2, 3, 'settled', 'crash', '{"v":2,"success":{"name":"crash","output":4,"latency_s":4.5e-05}}', NULL, NULL, 1795005750.673989);
INSERT INTO corpus.flujo_records VALUES (2, 4, 'started', 'ask', '{"v":2,"name":"ask","latency_s":0.000465}', NULL, NULL, 1795005750.678024);
INSERT INTO corpus.flujo_records VALUES (2, 5, 'paused', 'ask', '{"v":2,"step_name":"ask","message":"How many?","token":"paused:31f3bab581439da2:ask","attempts":1,"usage":{},"schema":null}', NULL, NULL, 1795005750.678043);
INSERT INTO corpus.flujo_records VALUES (2, 6, 'ended', '', '{"v":2,"status":"paused","feedback":"How many?"}', NULL, NULL, 1795005750.681282);
INSERT INTO corpus.flujo_records VALUES (3, 1, 'admitted', '', '{"v":2,"input":3,"context":{"$":"model","type":"flujo_actors.Context","value":{}},"fingerprint":{"form":2,"facts":[{"kind":"step","agent":"corpus_app.double"},{"kind":"step","agent":"corpus_app.crash"},{"kind":"question","message":"b02ccb03e5f2"},{"kind":"step","agent":"corpus_app.add"}],"steps":[["double",0],["crash",1],["ask",2],["add",3]]}}', NULL, NULL, 1795005751.841432);
INSERT INTO corpus.flujo_records VALUES (3, 2, 'settled', 'double', '{"v":2,"success":{"name":"double","output":6,"latency_s":0.000142},"context":{"$":"model","type":"flujo_actors.Context","value":{"doubled":[6]}}}', NULL, NULL, 1795005751.853663);
INSERT INTO corpus.flujo_runs OVERRIDING SYSTEM VALUE VALUES (1, '\x4ddb3e96801a1ee2b77dc5247c0db478d5f97a93b90e7cdb09f5f51d43764b08', 'completed', 'double >> crash >> ask >> add', 'completed', 1795005750.536547, 1795005750.655562, NULL, 2, 1795005780.640965, 12, NULL, NULL, NULL, 0, 0, NULL, '4cf83f3a735d5d3d', 1795005750.536752, 1795005750.640971, 1795005750.655566, 0.04364800453186035, 0, NULL, NULL, NULL, '', 0, NULL);
INSERT INTO corpus.flujo_runs OVERRIDING SYSTEM VALUE VALUES (2, '\xa7a9dc5bcf71adb2edc202814060a5ab6fca515382e9f1133dcc47d52d9090a2', 'paused', 'double >> crash >> ask >> add', 'paused', 1795005750.660112, 1795005750.679893, NULL, 1, 1795005780.660116, 7, NULL, NULL, NULL, 0, 0, NULL, '4cf83f3a735d5d3d', 1795005750.660117, 1795005750.660117, NULL, 0.019781112670898438, 0, NULL, NULL, NULL, '', 0, NULL);
INSERT INTO corpus.flujo_runs OVERRIDING SYSTEM VALUE VALUES (3, '\xff42dd0de480c0e0b3709248127b211a8e43d3779693d4c91c49564b8d49708f', 'crashed', 'double >> crash >> ask >> add', 'running', 1795005751.839475, 1795005751.850295, 'vm:28204:bcc08a50:b3e11e85-41b4-4119-9305-b85f94f3eb5a:4026531836.4026531834:563391', 1, 1795005781.839603, 3, NULL, NULL, NULL, 0, 0, NULL, '4cf83f3a735d5d3d', 1795005751.839603, 1795005751.839604, NULL, 0, 0, NULL, NULL, NULL, '', 0, NULL);
INSERT INTO corpus.flujo_schema VALUES (13, 3);
SELECT pg_catalog.setval('corpus.flujo_budgets_id_seq', 1, false);
SELECT pg_catalog.setval('corpus.flujo_events_number_seq', 1, false);
SELECT pg_catalog.setval('corpus.flujo_outbox_number_seq', 1, false);
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
ALTER TABLE ONLY corpus.flujo_cache
    ADD CONSTRAINT flujo_cache_pkey PRIMARY KEY (key);
ALTER TABLE ONLY corpus.flujo_conversations
    ADD CONSTRAINT flujo_conversations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY corpus.flujo_duties
    ADD CONSTRAINT flujo_duties_pkey PRIMARY KEY (name);
ALTER TABLE ONLY corpus.flujo_entries
    ADD CONSTRAINT flujo_entries_pkey PRIMARY KEY (id);
ALTER TABLE ONLY corpus.flujo_events
    ADD CONSTRAINT flujo_events_event_id_key UNIQUE (event, id);
ALTER TABLE ONLY corpus.flujo_events
    ADD CONSTRAINT flujo_events_pkey PRIMARY KEY (number);
ALTER TABLE ONLY corpus.flujo_labels
    ADD CONSTRAINT flujo_labels_pkey PRIMARY KEY (name, value, run);
ALTER TABLE ONLY corpus.flujo_outbox
    ADD CONSTRAINT flujo_outbox_id_key UNIQUE (id);
ALTER TABLE ONLY corpus.flujo_outbox
    ADD CONSTRAINT flujo_outbox_pkey PRIMARY KEY (number);
ALTER TABLE ONLY corpus.flujo_pauses
    ADD CONSTRAINT flujo_pauses_pkey PRIMARY KEY (id);
ALTER TABLE ONLY corpus.flujo_queues
    ADD CONSTRAINT flujo_queues_pkey PRIMARY KEY (name);
ALTER TABLE ONLY corpus.flujo_rates
    ADD CONSTRAINT flujo_rates_pkey PRIMARY KEY (name, resource);
ALTER TABLE ONLY corpus.flujo_records
    ADD CONSTRAINT flujo_records_pkey PRIMARY KEY (run, seq);
ALTER TABLE ONLY corpus.flujo_runs
    ADD CONSTRAINT flujo_runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY corpus.flujo_runs
    ADD CONSTRAINT flujo_runs_run_hash_key UNIQUE (run_hash);
ALTER TABLE ONLY corpus.flujo_schedules
    ADD CONSTRAINT flujo_schedules_pkey PRIMARY KEY (name);
ALTER TABLE ONLY corpus.flujo_shares
    ADD CONSTRAINT flujo_shares_pkey PRIMARY KEY (budget, holder_hash);
ALTER TABLE ONLY corpus.flujo_slots
    ADD CONSTRAINT flujo_slots_pkey PRIMARY KEY (name, run, holder);
ALTER TABLE ONLY corpus.flujo_texts_wanted
    ADD CONSTRAINT flujo_texts_wanted_pkey PRIMARY KEY (run);
ALTER TABLE ONLY corpus.flujo_workers
    ADD CONSTRAINT flujo_workers_pkey PRIMARY KEY (name);
CREATE INDEX flujo_budgets_by_end ON corpus.flujo_budgets USING btree (ends_at) WHERE (ends_at IS NOT NULL);
CREATE INDEX flujo_budgets_by_run ON corpus.flujo_budgets USING hash (run);
CREATE INDEX flujo_cache_by_time ON corpus.flujo_cache USING btree (until);
CREATE INDEX flujo_conversations_branched ON corpus.flujo_conversations USING btree (id) WHERE (tips <> '[]'::text);
CREATE INDEX flujo_conversations_by_head ON corpus.flujo_conversations USING btree (head);
CREATE INDEX flujo_conversations_by_scope ON corpus.flujo_conversations USING btree ("left"(scope, 200), updated_at);
CREATE INDEX flujo_conversations_listed ON corpus.flujo_conversations USING btree (updated_at);
CREATE INDEX flujo_entries_by_parent ON corpus.flujo_entries USING btree (parent);
CREATE INDEX flujo_events_buffered ON corpus.flujo_events USING btree (event, key, number) WHERE (status = 'buffered'::text);
CREATE INDEX flujo_events_old ON corpus.flujo_events USING btree (keep_until);
CREATE INDEX flujo_labels_by_run ON corpus.flujo_labels USING btree (run);
CREATE INDEX flujo_outbox_by_run ON corpus.flujo_outbox USING btree (run);
CREATE INDEX flujo_outbox_due ON corpus.flujo_outbox USING btree (next_at) WHERE (status = 'pending'::text);
CREATE INDEX flujo_pauses_asked ON corpus.flujo_pauses USING btree (id) WHERE ((answered IS NULL) AND (wait IS NULL));
CREATE INDEX flujo_pauses_by_addressee ON corpus.flujo_pauses USING btree ("left"(addressee, 200), id) WHERE ((answered IS NULL) AND (addressee IS NOT NULL));
CREATE INDEX flujo_pauses_by_event ON corpus.flujo_pauses USING btree (event, key, id) WHERE ((answered IS NULL) AND (event IS NOT NULL));
CREATE INDEX flujo_pauses_by_run ON corpus.flujo_pauses USING btree (run);
CREATE INDEX flujo_pauses_due ON corpus.flujo_pauses USING btree (due_at) WHERE ((answered IS NULL) AND (due_at IS NOT NULL));
CREATE INDEX flujo_pauses_expired ON corpus.flujo_pauses USING btree (run) WHERE (answered < '00000000-0000-0001-0000-000000000000'::uuid);
CREATE INDEX flujo_pauses_open ON corpus.flujo_pauses USING btree (run) WHERE (answered IS NULL);
CREATE INDEX flujo_records_by_blob ON corpus.flujo_records USING btree (blob) WHERE (blob IS NOT NULL);
CREATE INDEX flujo_records_compacted ON corpus.flujo_records USING btree (run, seq) WHERE (kind = 'compacted'::text);
CREATE INDEX flujo_runs_answered ON corpus.flujo_runs USING btree (id) WHERE ((parent IS NULL) AND (ready = 1) AND (status <> 'running'::text));
CREATE INDEX flujo_runs_asleep ON corpus.flujo_runs USING btree (wake_at) WHERE ((ready IS NULL) AND (wake_at IS NOT NULL));
CREATE INDEX flujo_runs_by_parent ON corpus.flujo_runs USING hash (parent) WHERE (parent IS NOT NULL);
CREATE INDEX flujo_runs_by_pipeline ON corpus.flujo_runs USING btree ("left"(pipeline, 200), id) WHERE (parent IS NULL);
CREATE INDEX flujo_runs_by_prefix ON corpus.flujo_runs USING btree ("left"(run_id, 200) text_pattern_ops) WHERE (parent IS NULL);
CREATE INDEX flujo_runs_by_status ON corpus.flujo_runs USING btree (status, id) WHERE (parent IS NULL);
CREATE INDEX flujo_runs_claimable ON corpus.flujo_runs USING btree (queue, priority DESC, key, wake_at, id) WHERE (ready = 1);
CREATE INDEX flujo_runs_ended ON corpus.flujo_runs USING btree (ended_at, id) WHERE ((parent IS NULL) AND (ended_at IS NOT NULL));
CREATE INDEX flujo_runs_leased ON corpus.flujo_runs USING btree (lease_until) WHERE (owner IS NOT NULL);
CREATE INDEX flujo_runs_listed ON corpus.flujo_runs USING btree (queue, id) WHERE ((parent IS NULL) AND (queue IS NOT NULL));
CREATE INDEX flujo_runs_open ON corpus.flujo_runs USING btree (id) WHERE ((parent IS NULL) AND (ended_at IS NULL));
CREATE UNIQUE INDEX flujo_runs_singleton ON corpus.flujo_runs USING btree (singleton) WHERE ((ended_at IS NULL) AND (singleton IS NOT NULL));
CREATE INDEX flujo_runs_steered ON corpus.flujo_runs USING btree (run_hash) WHERE ((steered IS NOT NULL) AND (owner IS NOT NULL));
CREATE INDEX flujo_runs_to_cancel ON corpus.flujo_runs USING btree (run_hash) WHERE (cancel IS NOT NULL);
CREATE INDEX flujo_schedules_due ON corpus.flujo_schedules USING btree (pipeline, due_at);
CREATE INDEX flujo_texts_by_run ON corpus.flujo_texts USING btree (run);
