// Checks manifests against the schemas of Kubernetes that come with the npm package
// kubernetes-models: its validators find what is missing or of a wrong type, and its types, by way
// of the TypeScript compiler, every key that Kubernetes does not know.
// usage: node check_manifest.cjs FILE...
// SPDX-License-Identifier: MIT
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { createRequire } = require('node:module');
const { execFileSync } = require('node:child_process');

// The packages are in the folder from which this is run.
const require_package = createRequire(path.join(process.cwd(), 'package.json'));
const YAML = require_package('yaml');

const model = (manifest) => `kubernetes-models/${manifest.apiVersion}`;

// Returns the errors of a manifest, one line each.
function errors_of_schema(manifest) {
  const models = require_package(model(manifest));
  const Model = models[manifest.kind];
  if (!Model) return [`no kind ${manifest.kind} in ${manifest.apiVersion}`];
  try {
    new Model(manifest).validate();
    return [];
  } catch (error) {
    return [error.message];
  }
}

function errors_of_types(manifest) {
  const folder = fs.mkdtempSync(path.join(process.cwd(), 'check-'));
  try {
    const file = path.join(folder, 'manifest.ts');
    // A literal where its type is known may have no key that the type has not.
    fs.writeFileSync(
      file,
      `import type { I${manifest.kind} } from '${model(manifest)}';\n` +
        `export const manifest: I${manifest.kind} = ${JSON.stringify(manifest, null, 2)};\n`,
    );
    const compiler = path.join('node_modules', '.bin', 'tsc');
    execFileSync(
      compiler,
      ['--noEmit', '--strict', '--skipLibCheck', '--module', 'nodenext', '--types', '', file],
      { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] },
    );
    return [];
  } catch (error) {
    const said = `${error.stdout ?? ''}${error.stderr ?? ''}`.trim();
    return [said === '' ? error.message : said];
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

let failed = false;
for (const file of process.argv.slice(2)) {
  const documents = YAML.parseAllDocuments(fs.readFileSync(file, 'utf8'), { strict: true });
  for (const document of documents) {
    const errors = document.errors.map(String);
    if (errors.length === 0) {
      const manifest = document.toJS();
      errors.push(...errors_of_schema(manifest), ...errors_of_types(manifest));
    }
    for (const error of errors) {
      console.error(`${file}: ${error}`);
      failed = true;
    }
    if (errors.length === 0) console.log(`${file}: as Kubernetes' schemas want it`);
  }
}
process.exit(failed ? 1 : 0);
