CREATE TABLE corpus.flujo_blobs (
    hash bytea NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE corpus.flujo_pauses (
    id bigint NOT NULL,
    run bigint NOT NULL,
    path text NOT NULL,
    token text NOT NULL,
    message text NOT NULL,
    body text NOT NULL,
    answered uuid
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
    blob bytea
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
    next_seq bigint NOT NULL
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
INSERT INTO corpus.flujo_pauses OVERRIDING SYSTEM VALUE VALUES (1, 1, 'ask', 'completed:b2dc7fa95f99c79e:ask', 'How many?', '{"v":2,"step_name":"ask","message":"How many?","token":"completed:b2dc7fa95f99c79e:ask","attempts":1,"usage":{},"schema":null}', '7c3263d8-7c2a-440b-b94c-89a52e1f6f20');
INSERT INTO corpus.flujo_pauses OVERRIDING SYSTEM VALUE VALUES (2, 2, 'ask', 'paused:31f3bab581439da2:ask', 'How many?', '{"v":2,"step_name":"ask","message":"How many?","token":"paused:31f3bab581439da2:ask","attempts":1,"usage":{},"schema":null}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 1, 'admitted', '', '{"v":2,"input":1,"context":{"$":"model","type":"flujo_actors.context.freeform.Context","value":{}},"fingerprint":{"facts":[{"kind":"step","agent":"corpus_app.double"},{"kind":"step","agent":"corpus_app.crash"},{"kind":"question","message":"b02ccb03e5f2"},{"kind":"step","agent":"corpus_app.add"}],"steps":[["double",0],["crash",1],["ask",2],["add",3]]}}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 2, 'settled', 'double', '{"v":2,"success":{"name":"double","output":2,"latency_s":0.000194},"context":{"$":"model","type":"flujo_actors.context.freeform.Context","value":{"doubled":[2]}}}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 3, 'settled', 'crash', '{"v":2,"success":{"name":"crash","output":2,"latency_s":2.5e-05}}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 4, 'started', 'ask', '{"v":2,"name":"ask"}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 5, 'paused', 'ask', '{"v":2,"step_name":"ask","message":"How many?","token":"completed:b2dc7fa95f99c79e:ask","attempts":1,"usage":{},"schema":null}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 6, 'ended', '', '{"v":2,"status":"paused","feedback":"How many?"}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 7, 'answered', 'ask', '{"v":2,"answer":40}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 8, 'resumed', '', '{"v":2,"owner":"vm:14441:2f09d69b","epoch":2}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 9, 'settled', 'ask', '{"v":2,"success":{"name":"ask","output":40,"latency_s":4.5e-05}}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 10, 'settled', 'add', '{"v":2,"success":{"name":"add","output":41,"latency_s":0.000106}}', NULL);
INSERT INTO corpus.flujo_records VALUES (1, 11, 'ended', '', '{"v":2,"status":"completed"}', NULL);
INSERT INTO corpus.flujo_records VALUES (2, 1, 'admitted', '', '{"v":2,"input":2,"context":{"$":"model","type":"flujo_actors.context.freeform.Context","value":{}},"fingerprint":{"facts":[{"kind":"step","agent":"corpus_app.double"},{"kind":"step","agent":"corpus_app.crash"},{"kind":"question","message":"b02ccb03e5f2"},{"kind":"step","agent":"corpus_app.add"}],"steps":[["double",0],["crash",1],["ask",2],["add",3]]}}', NULL);
INSERT INTO corpus.flujo_records VALUES (2, 2, 'settled', 'double', '{"v":2,"success":{"name":"double","output":4,"latency_s":0.000145},"context":{"$":"model","type":"flujo_actors.context.freeform.Context","value":{"doubled":[4]}}}', NULL);
INSERT INTO corpus.flujo_records VALUES (2, 3, 'settled', 'crash', '{"v":2,"success":{"name":"crash","output":4,"latency_s":2e-05}}', NULL);
INSERT INTO corpus.flujo_records VALUES (2, 4, 'started', 'ask', '{"v":2,"name":"ask"}', NULL);
INSERT INTO corpus.flujo_records VALUES (2, 5, 'paused', 'ask', '{"v":2,"step_name":"ask","message":"How many?","token":"paused:31f3bab581439da2:ask","attempts":1,"usage":{},"schema":null}', NULL);
INSERT INTO corpus.flujo_records VALUES (2, 6, 'ended', '', '{"v":2,"status":"paused","feedback":"How many?"}', NULL);
INSERT INTO corpus.flujo_records VALUES (3, 1, 'admitted', '', '{"v":2,"input":3,"context":{"$":"model","type":"flujo_actors.context.freeform.Context","value":{}},"fingerprint":{"facts":[{"kind":"step","agent":"corpus_app.double"},{"kind":"step","agent":"corpus_app.crash"},{"kind":"question","message":"b02ccb03e5f2"},{"kind":"step","agent":"corpus_app.add"}],"steps":[["double",0],["crash",1],["ask",2],["add",3]]}}', NULL);
INSERT INTO corpus.flujo_records VALUES (3, 2, 'settled', 'double', '{"v":2,"success":{"name":"double","output":6,"latency_s":0.000164},"context":{"$":"model","type":"flujo_actors.context.freeform.Context","value":{"doubled":[6]}}}', NULL);
INSERT INTO corpus.flujo_runs OVERRIDING SYSTEM VALUE VALUES (1, '\x4ddb3e96801a1ee2b77dc5247c0db478d5f97a93b90e7cdb09f5f51d43764b08', 'completed', 'double >> crash >> ask >> add', 'completed', 1794959601.153063, 1794959601.774423, NULL, 2, 1794959631.756682, 12);
INSERT INTO corpus.flujo_runs OVERRIDING SYSTEM VALUE VALUES (2, '\xa7a9dc5bcf71adb2edc202814060a5ab6fca515382e9f1133dcc47d52d9090a2', 'paused', 'double >> crash >> ask >> add', 'paused', 1794959601.7764, 1794959601.780911, NULL, 1, 1794959631.776404, 7);
INSERT INTO corpus.flujo_runs OVERRIDING SYSTEM VALUE VALUES (3, '\xff42dd0de480c0e0b3709248127b211a8e43d3779693d4c91c49564b8d49708f', 'crashed', 'double >> crash >> ask >> add', 'running', 1794959603.245042, 1794959603.281999, 'vm:14504:807fd91a', 1, 1794959633.245071, 3);
INSERT INTO corpus.flujo_schema VALUES (1);
SELECT pg_catalog.setval('corpus.flujo_pauses_id_seq', 2, true);
SELECT pg_catalog.setval('corpus.flujo_runs_id_seq', 3, true);
ALTER TABLE ONLY corpus.flujo_blobs
    ADD CONSTRAINT flujo_blobs_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY corpus.flujo_pauses
    ADD CONSTRAINT flujo_pauses_pkey PRIMARY KEY (id);
ALTER TABLE ONLY corpus.flujo_records
    ADD CONSTRAINT flujo_records_pkey PRIMARY KEY (run, seq);
ALTER TABLE ONLY corpus.flujo_runs
    ADD CONSTRAINT flujo_runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY corpus.flujo_runs
    ADD CONSTRAINT flujo_runs_run_hash_key UNIQUE (run_hash);
CREATE INDEX flujo_pauses_by_run ON corpus.flujo_pauses USING btree (run);
CREATE INDEX flujo_records_by_blob ON corpus.flujo_records USING btree (blob) WHERE (blob IS NOT NULL);
CREATE INDEX flujo_runs_by_status ON corpus.flujo_runs USING btree (status);
