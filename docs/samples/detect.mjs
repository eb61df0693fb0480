// Sends a picture to a daemon and prints what its model found: node detect.mjs HOST:PORT MODEL PICTURE.jpg
// Needs: npm install @grpc/grpc-js @grpc/proto-loader, and the files of protos/ in PROTOS, ./protos by default.
import { readFileSync } from "node:fs";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [target, model, picture] = process.argv.slice(2);
const definition = loader.loadSync("cameras.proto", {
  includeDirs: [process.env.PROTOS ?? "protos"], longs: Number, defaults: true,
});
const { Cameras } = grpc.loadPackageDefinition(definition).edged.v1;
// Beyond this machine: grpc.credentials.createSsl(readFileSync("ca.pem"))
const cameras = new Cameras(target, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
if (process.env.EDGED_TOKEN) metadata.set("authorization", `Bearer ${process.env.EDGED_TOKEN}`);

const frame = { model, camera: "sample", encoded: readFileSync(picture) };
cameras.DetectOne(frame, metadata, { deadline: Date.now() + 10_000 }, (error, result) => {
  if (error) {
    console.error(`${error.code}: ${error.details}`);
    process.exitCode = 1;
  } else {
    for (const { label, score, x1, y1, x2, y2 } of result.detections) {
      console.log(label, score.toFixed(2), ...[x1, y1, x2, y2].map(Math.round));
    }
  }
  cameras.close();
});
